"""Training loops that are right, of the kinds that a rule of `check` may take for wrong; each records its steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode

Loop = Callable[[Path], None]
LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__.replace("_", " ")] = function
    return function


def recording(path: Path, model: Any, **options: Any) -> DumpMode:
    return DumpMode(DumpConfig(path=str(path), data="tensor", **options), model=model)


def net(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 3))


def batch(size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 6), torch.randint(0, 3, (size,))


@loop
def gradient_accumulation_in_one_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            for _ in range(3):
                x, y = batch()
                (F.cross_entropy(model(x), y) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def gradient_accumulation_over_recorded_steps(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for number in range(4):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            dump.step()


@loop
def cleared_before_backward(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with recording(path, model) as dump:
        for _ in range(3):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            dump.step()


@loop
def steps_that_end_in_the_middle(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(3):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            dump.step()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def _scaled(path: Path, scale: float, clip: bool, accumulate: int = 1) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    with recording(path, model) as dump:
        for _ in range(3):
            for _ in range(accumulate):
                x, y = batch()
                with torch.autocast("cpu", torch.float16):
                    loss = F.cross_entropy(model(x).float(), y)
                scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            dump.step()


@loop
def scaler(path: Path) -> None:
    _scaled(path, 1024.0, clip=False)


@loop
def scaler_and_clipping(path: Path) -> None:
    _scaled(path, 1024.0, clip=True)


@loop
def scaler_that_skips_a_step(path: Path) -> None:
    _scaled(path, 2.0**40, clip=False)


@loop
def scaler_and_accumulation(path: Path) -> None:
    _scaled(path, 256.0, clip=True, accumulate=2)


@loop
def scaler_that_is_off(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with recording(path, model):
        x, y = batch()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def _gan(path: Path, one_module: bool, each_update_a_step: bool) -> None:
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    for_critic, for_generator = (torch.optim.Adam(m.parameters(), 1e-3) for m in (critic, generator))
    models: Any = {"generator": generator, "critic": critic}
    with recording(path, nn.ModuleDict(models) if one_module else models) as dump:
        for _ in range(2):
            fake = generator(torch.randn(8, 4))
            real = critic(torch.randn(8, 6))
            loss = F.binary_cross_entropy_with_logits(real, torch.ones(8, 1))
            loss = loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), torch.zeros(8, 1))
            for_critic.zero_grad()
            loss.backward()
            for_critic.step()
            if each_update_a_step:
                dump.step()
            loss = F.binary_cross_entropy_with_logits(critic(generator(torch.randn(8, 4))), torch.ones(8, 1))
            for_generator.zero_grad()
            loss.backward()
            for_generator.step()
            dump.step()


@loop
def gan_in_one_step(path: Path) -> None:
    _gan(path, one_module=False, each_update_a_step=False)


@loop
def gan_with_a_step_for_each_update(path: Path) -> None:
    _gan(path, one_module=False, each_update_a_step=True)


@loop
def gan_in_one_module_with_a_step_for_each_update(path: Path) -> None:
    _gan(path, one_module=True, each_update_a_step=True)


@loop
def average_of_weights(path: Path) -> None:
    model = net(0.1)
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, {"model": model, "teacher": teacher}) as dump:
        for _ in range(2):
            x, y = batch()
            out = model(x)
            with torch.no_grad():
                target = teacher(x).softmax(-1)
            loss = F.cross_entropy(out, y) + F.kl_div(out.log_softmax(-1), target, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                    old.mul_(0.99).add_(new, alpha=0.01)
            dump.step()


@loop
def two_views_with_a_stopped_gradient(path: Path) -> None:
    encoder = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    predictor = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with recording(path, model) as dump:
        for _ in range(2):
            x = torch.randn(8, 6)
            one, two = encoder(x + 0.1 * torch.randn(8, 6)), encoder(x + 0.1 * torch.randn(8, 6))
            loss = -F.cosine_similarity(predictor(one), two.detach()).mean()
            loss = loss - F.cosine_similarity(predictor(two), one.detach()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def frozen_batch_norm(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model[1].eval()
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    with recording(path, model):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@loop
def lbfgs(path: Path) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with recording(path, model) as dump:
        for _ in range(2):
            optimizer.step(closure)
            dump.step()


@loop
def sharpness_aware(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            moved = []
            with torch.no_grad():
                norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                for p in model.parameters():
                    moved.append(p.grad * (0.05 / norm))
                    p.add_(moved[-1])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, by in zip(model.parameters(), moved, strict=True):
                    p.sub_(by)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def two_optimizers_for_two_parts(path: Path) -> None:
    model = net()
    first = torch.optim.SGD(model[0].parameters(), 0.1)
    second = torch.optim.AdamW([*model[1].parameters(), *model[4].parameters()])
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
            dump.step()


@loop
def validation_beside_training(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for number in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number:
                model.eval()
                with torch.no_grad():
                    model(batch()[0]).argmax(-1)
                model.train()
            dump.step()


class _Decoder(nn.Module):
    """Attention with a causal mask and padded keys, over one token or many; positions in float32."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(20, width), heads
        self.qkv, self.out, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 20)
        self.register_buffer("frequencies", 1 / 100.0 ** (torch.arange(4).float() / 4), persistent=False)

    def forward(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        x = self.words(tokens)
        size, length, width = x.shape
        angles = torch.arange(length)[:, None] * self.frequencies
        x = x + torch.cat([angles.sin(), angles.cos()], -1).repeat(1, width // 8).to(x.dtype)
        q, k, v = (t.view(size, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if kept is not None:
            mask = mask & kept[:, None, None, :].bool()
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~mask, torch.finfo(x.dtype).min)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(size, length, width)
        return self.head(x + self.out(mixed))


@loop
def padded_on_the_left(path: Path) -> None:
    model = _Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, kept = torch.randint(0, 20, (3, 7)), torch.ones(3, 7)
    kept[0, :3] = 0
    labels = tokens.masked_fill(kept == 0, -100)
    with recording(path, model):
        F.cross_entropy(model(tokens, kept)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()
        optimizer.step()


@loop
def one_token(path: Path) -> None:
    model = _Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model):
        F.cross_entropy(model(torch.randint(0, 20, (3, 1))).flatten(0, 1), torch.tensor([1, 2, 3])).backward()
        optimizer.step()


@loop
def bfloat16_with_positions_in_float32(path: Path) -> None:
    model = _Decoder().to(torch.bfloat16)
    model.frequencies = 1 / 100.0 ** (torch.arange(4).float() / 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with recording(path, model):
        tokens = torch.randint(0, 20, (1, 600))
        F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()


@loop
def attention_pooling(path: Path) -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.score, self.head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.inner(x).tanh()
            return self.head((self.score(h).softmax(1) * h).sum(1))

    model = Pool()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model):
        F.cross_entropy(model(torch.randn(4, 5, 6)), torch.randint(0, 3, (4,))).backward()
        optimizer.step()


@loop
def pairs_of_scores(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model):
        x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
        scores = model(x)
        apart = scores - scores.squeeze(1)
        same = (labels.unsqueeze(1) == labels).float()
        (F.softplus(-apart) * (1 - same)).mean().backward()
        optimizer.step()


@loop
def regression(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 1)).backward()
            ((model(torch.randn(8, 6)).squeeze(-1) - torch.randn(8)) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def policy_gradient_with_a_baseline(path: Path) -> None:
    model = nn.ModuleDict({"policy": nn.Linear(6, 3), "critic": nn.Linear(6, 1)})
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with recording(path, model) as dump:
        for _ in range(2):
            x, reward = torch.randn(16, 6), torch.randn(16)
            taken = torch.distributions.Categorical(logits=model["policy"](x))
            value = model["critic"](x).squeeze(-1)
            action = taken.sample()
            gained = (reward - value).detach()
            loss = -(taken.log_prob(action) * gained).mean() + F.mse_loss(value, reward)
            (loss - 0.01 * taken.entropy().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def straight_through(path: Path) -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(6, 4), "codes": nn.Embedding(5, 4), "decoder": nn.Linear(4, 6)})
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with recording(path, model) as dump:
        for _ in range(2):
            x = torch.randn(16, 6)
            z = model["encoder"](x)
            code = model["codes"](torch.cdist(z, model["codes"].weight).argmin(-1))
            out = model["decoder"](z + (code - z).detach())
            (F.mse_loss(out, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def experts_of_which_some_get_nothing(path: Path) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.head = nn.Linear(6, 4), nn.Linear(6, 3)
            self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            weight, chosen = self.router(x).softmax(-1).max(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                taken = (chosen == number).nonzero().squeeze(-1)
                if taken.numel():
                    out = out.index_add(0, taken, expert(x[taken]) * weight[taken, None])
            return self.head(out)

    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            F.cross_entropy(model(torch.randn(2, 6)), torch.randint(0, 3, (2,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def weights_tied_and_checkpointed(path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = checkpoint(lambda h: self.inner(h).tanh(), self.words(tokens), use_reentrant=False)
            return self.head(x)

    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            tokens = torch.randint(0, 20, (3, 6))
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def running_sums_in_float32(path: Path) -> None:
    model = net().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    total, seen = torch.zeros(()), torch.zeros((), dtype=torch.long)
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            loss = F.cross_entropy(model(x.to(torch.bfloat16)).float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            seen += len(y)
            dump.step()


@loop
def inference(path: Path) -> None:
    model = net(0.3).eval()
    with torch.no_grad(), recording(path, model):
        model(batch()[0]).softmax(-1)


@loop
def gradients_by_hand(path: Path) -> None:
    model = net()
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p -= 0.1 * g
            dump.step()


@loop
def gradient_penalty(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with recording(path, model) as dump:
        for _ in range(2):
            x = torch.randn(8, 6, requires_grad=True)
            out = model(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (out.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def adapters_on_a_frozen_model(path: Path) -> None:
    model = nn.ModuleDict({"base": net(), "down": nn.Linear(6, 2, bias=False), "up": nn.Linear(2, 3, bias=False)})
    nn.init.zeros_(model["up"].weight)
    model["base"].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model["base"](x) + model["up"](model["down"](x)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
