"""Programs that need torch alone, of kinds that no model library has."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from . import Program


def _train(model: nn.Module, loss: Any, make: Any = torch.optim.Adam, steps: int = 2) -> list[Tensor]:
    optimizer, losses = make(model.parameters(), lr=0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        found = loss()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(found.detach())
    return [*losses, *model.parameters(), *model.buffers()]


def _net(*sizes: int) -> nn.Sequential:
    layers = [layer for at, size in enumerate(sizes[1:]) for layer in (nn.Linear(sizes[at], size), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def recurrent() -> list[Tensor]:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = (
                nn.Embedding(20, 8),
                nn.LSTM(8, 8, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True),
            )
            self.gru, self.tags = nn.GRU(16, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.words(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            found, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.tags(self.gru(found)[0])

    model, tokens = Tagger(), torch.randint(0, 20, (3, 6))
    return _train(
        model,
        lambda: F.cross_entropy(
            model(tokens, torch.tensor([6, 3, 5])).flatten(0, 1), torch.zeros(18, dtype=torch.long)
        ),
    )


def speech_with_ctc() -> list[Tensor]:
    model, sound = nn.Sequential(nn.Conv1d(4, 8, 3), nn.GELU(), nn.Conv1d(8, 6, 3)), torch.randn(2, 4, 24)
    wanted, lengths = torch.randint(1, 6, (2, 5)), torch.tensor([5, 4])
    return _train(
        model,
        lambda: F.ctc_loss(model(sound).permute(2, 0, 1).log_softmax(-1), wanted, torch.tensor([20, 20]), lengths),
    )


def adversaries_with_a_penalty() -> list[Tensor]:
    judge, real, made = _net(4, 8, 1), torch.randn(6, 4), torch.randn(6, 4)

    def loss() -> Tensor:
        between = torch.lerp(real, made, torch.rand(6, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(made).mean() - judge(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    return _train(judge, loss)


def quasi_newton() -> list[Tensor]:
    model, x = _net(3, 6, 1), torch.randn(10, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).detach(), *model.parameters()]  # type: ignore[union-attr, list-item]


def gradients_per_sample() -> list[Tensor]:
    model, x = _net(3, 4, 1), torch.randn(5, 3)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = vmap(grad(lambda w, one: functional_call(model, w, (one,)).square().sum()), (None, 0))(weights, x)
    return [*found.values(), jacrev(lambda one: model(one))(x[0]), *jvp(model, (x,), (torch.ones_like(x),))]


def learning_to_learn() -> list[Tensor]:
    model, x = _net(2, 6, 1), torch.randn(4, 8, 2)

    def loss() -> Tensor:
        total = torch.zeros(())
        for task in x:
            weights = dict(model.named_parameters())
            inner = functional_call(model, weights, (task[:4],)).square().mean()
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            moved = {name: w - 0.1 * slope for (name, w), slope in zip(weights.items(), slopes, strict=True)}
            total = total + functional_call(model, moved, (task[4:],)).square().mean()
        return total

    return _train(model, loss)


def reinforcement() -> list[Tensor]:
    policy, state = _net(4, 8, 2), torch.randn(12, 4)

    def loss() -> Tensor:
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        return -(choice.log_prob(action) * (action.float() - 0.5)).mean() - 0.01 * choice.entropy().mean()

    return _train(policy, loss)


def variational_autoencoder() -> list[Tensor]:
    encoder, decoder, x = _net(6, 8, 4), _net(2, 8, 6), torch.rand(5, 6)

    def loss() -> Tensor:
        mean, spread = encoder(x).chunk(2, dim=1)
        code = torch.distributions.Normal(mean, spread.exp())
        found = F.binary_cross_entropy_with_logits(decoder(code.rsample()), x)
        return found + torch.distributions.kl_divergence(code, torch.distributions.Normal(0.0, 1.0)).mean()

    return _train(nn.ModuleList([encoder, decoder]), loss)


def translation() -> list[Tensor]:
    model, x, y = nn.Transformer(16, 2, 1, 1, 24, batch_first=True), torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return _train(model, lambda: (model(x, y, tgt_mask=mask, tgt_is_causal=True) - y).square().mean())


def evaluated_by_the_fast_path() -> list[Tensor]:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2).eval()
    with torch.no_grad():
        return [
            model(torch.randn(2, 5, 16), src_key_padding_mask=torch.tensor([[False] * 5, [False] * 3 + [True] * 2]))
        ]


def sparse_embeddings() -> list[Tensor]:
    words, bags = nn.Embedding(30, 4, sparse=True), nn.EmbeddingBag(30, 4, mode="mean", sparse=True)
    optimizer = torch.optim.SparseAdam([*words.parameters(), *bags.parameters()])
    loss = (words(torch.randint(0, 30, (6,))).sum() + bags(torch.randint(0, 30, (2, 5))).square().sum()).square()
    loss.backward()
    optimizer.step()
    return [loss.detach(), words.weight, bags.weight]


def mixed_precision_and_checkpointing() -> list[Tensor]:
    model, x = (
        nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)]),
        torch.randn(4, 8),
    )

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x
            for block in model:
                y = checkpoint(block, y, use_reentrant=False)
            return y.float().square().mean()

    return _train(model, loss)


def averaged_weights() -> list[Tensor]:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)), torch.randn(8, 4)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    ends = _train(model, lambda: model(x).square().mean(), torch.optim.NAdam)
    averaged.update_parameters(model)
    torch.optim.swa_utils.update_bn([x], averaged)
    return [*ends, *averaged.parameters(), *averaged.buffers()]


def contrastive() -> list[Tensor]:
    model, x = _net(5, 8, 3), torch.randn(6, 5)
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss() -> Tensor:
        near, far = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1), F.normalize(teacher(x), dim=1)
        return F.cross_entropy(near @ far.T / 0.2, torch.arange(6)) + F.triplet_margin_loss(near, far, far.roll(1, 0))

    return _train(model, loss, torch.optim.RMSprop)


def differential_equation() -> list[Tensor]:
    field, x = _net(2, 8, 2), torch.randn(5, 2)

    def loss() -> Tensor:
        y = x
        for _ in range(4):  # Heun's method
            slope = field(y)
            y = y + 0.125 * (slope + field(y + 0.25 * slope))
        return y.square().mean()

    return _train(field, loss, torch.optim.Rprop)


def segmentation() -> list[Tensor]:
    down, up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 2, 2, stride=2)
    model, x = (
        nn.Sequential(down, nn.InstanceNorm2d(8, affine=True), nn.Mish(inplace=True), up),
        torch.randn(2, 3, 8, 8),
    )
    return _train(
        model,
        lambda: F.cross_entropy(F.interpolate(model(x), 16, mode="bilinear"), torch.zeros(2, 16, 16, dtype=torch.long)),
    )


def exported() -> list[Tensor]:
    model, x = _net(4, 6, 2), torch.randn(3, 4)
    program = torch.export.export(model, (x,)).module()
    loss = program(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in program.parameters() if p.grad is not None)]


def compiled() -> list[Tensor]:
    torch.compiler.reset()
    model, x = _net(4, 6, 2), torch.randn(3, 4)
    fast = torch.compile(model, backend="aot_eager")
    return _train(model, lambda: fast(x).square().mean(), steps=1)


def scripted() -> list[Tensor]:
    model, x = torch.jit.script(_net(4, 6, 2)), torch.randn(3, 4)
    return _train(model, lambda: model(x).square().mean())


def complex_numbers() -> list[Tensor]:
    weight = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
    signal = torch.randn(3, 4)
    loss = (torch.fft.ifft(torch.fft.fft(signal) @ weight).real - signal).square().mean() + torch.linalg.eigvals(
        weight.detach()
    ).abs().sum()
    loss.backward()
    assert weight.grad is not None
    return [loss.detach(), weight.grad]


PROGRAMS: dict[str, Program] = {
    program.__name__.replace("_", " "): program
    for program in (
        recurrent, speech_with_ctc, adversaries_with_a_penalty, quasi_newton, gradients_per_sample, learning_to_learn, reinforcement,
        variational_autoencoder, translation, evaluated_by_the_fast_path, sparse_embeddings, mixed_precision_and_checkpointing,
        averaged_weights, contrastive, differential_equation, segmentation, exported, compiled, scripted, complex_numbers,
    )
}  # fmt: skip
