"""Programs with a planted bug each, written by somebody who had not read the rules: as people really write them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import batch, net, recording
from .planted import classify, planted, train


class Attention(nn.Module):
    """Self attention as it is written by hand, with a mask and a temperature."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), v

    def join(self, weights: Tensor, v: Tensor) -> Tensor:
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores, v = self.scores(x)
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return self.join(scores.softmax(-1), v)


class Language(nn.Module):
    """A small language model of blocks with a residual stream."""

    def __init__(self, block: Any = Attention, vocabulary: int = 23, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(12, width)
        self.norm, self.block = nn.LayerNorm(width), block(width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, vocabulary)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.block(self.norm(x))  # bug
        return self.head(x + self.mlp(x))  # bug


def ids(count: int = 4) -> Tensor:
    return torch.randint(1, 23, (count, 8))


def language_loss(model: nn.Module) -> Tensor:
    tokens = ids()
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


# -- no-gradient --------------------------------------------------------------------------------------------------------


@planted("no-gradient")
def adapter_under_inference_of_the_trunk(path: Path) -> None:
    class Block(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            n, length, width = x.shape
            with torch.no_grad():
                q, k, v = self.qkv(x).view(n, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)  # bug
            return self.join((q @ k.transpose(-1, -2)).softmax(-1), v)

    model = Language(Block)
    train(path, model, lambda: language_loss(model))


@planted("no-gradient")
def latent_taken_by_its_data(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 2), nn.Linear(2, 6)

        def forward(self, x: Tensor) -> Tensor:
            latent = torch.tanh(self.encode(x)).detach_()  # bug
            return self.decode(latent)

    model = Net()
    train(path, model, lambda: F.mse_loss(model(torch.randn(16, 6)), torch.randn(16, 6)))


# -- gradient-dropped ---------------------------------------------------------------------------------------------------


@planted("gradient-dropped")
def cleared_at_the_wrong_end_of_accumulation(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for number in range(1, 5):
            (classify(model) / 2).backward()
            if number % 2 == 0:
                model.zero_grad()  # bug
                optimizer.step()  # bug
            dump.step()


@planted("gradient-dropped")
def schedule_helper_clears_first(path: Path) -> None:
    def apply(optimizer: torch.optim.Optimizer, schedule: Any) -> None:
        optimizer.zero_grad()  # bug
        optimizer.step()  # bug
        schedule.step()

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            apply(optimizer, schedule)
            dump.step()


@planted("gradient-dropped")
def cleared_while_the_loss_is_logged(path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adagrad(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.zero_()  # bug
            optimizer.step()  # bug
            dump.step()


# -- gradient-applied-twice ---------------------------------------------------------------------------------------------


@planted("gradient-applied-twice")
def the_helper_of_the_trainer_steps_as_well(path: Path) -> None:
    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.optimizer = model, torch.optim.AdamW(model.parameters())

        def backward(self, loss: Tensor) -> None:
            loss.backward()
            self.optimizer.step()

    model = Language()
    trainer = Trainer(model)
    with recording(path, model) as dump:
        for _ in range(2):
            trainer.backward(language_loss(model))
            trainer.optimizer.step()  # bug
            trainer.optimizer.zero_grad()
            dump.step()


@planted("gradient-applied-twice")
def one_optimizer_for_decay_and_one_for_all(path: Path) -> None:
    model = Language()
    decayed = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], 0.01, weight_decay=0.1)
    every = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            language_loss(model).backward()
            decayed.step()
            every.step()  # bug
            every.zero_grad()
            dump.step()


@planted("gradient-applied-twice")
def stepped_for_each_of_two_losses_after_one_backward(path: Path) -> None:
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            logits = model(x)
            losses = [F.cross_entropy(logits, y), logits.square().mean()]
            sum(losses).backward()  # type: ignore[union-attr]
            for _ in losses:
                optimizer.step()  # bug
            optimizer.zero_grad()
            dump.step()


# -- no-optimizer -------------------------------------------------------------------------------------------------------


@planted("no-optimizer")
def filtered_by_a_name_that_matches_too_much(path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Language()

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(ids)

    model = Wrapped()
    kept = [p for name, p in model.named_parameters() if "norm" not in name]
    train(path, model, lambda: language_loss(model), torch.optim.AdamW(kept))


@planted("no-optimizer")
def head_replaced_after_the_optimizer_was_made(path: Path) -> None:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters())
    model.mlp[2] = nn.Linear(32, 16)
    with recording(path, model) as dump:
        for _ in range(2):
            language_loss(model).backward()
            optimizer.step()  # bug
            optimizer.zero_grad()
            dump.step()


# -- stale-gradient -----------------------------------------------------------------------------------------------------


@planted("stale-gradient")
def cleared_only_when_the_loss_is_small(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recording(path, model) as dump:
        for _ in range(3):
            loss = classify(model)
            loss.backward()  # bug
            optimizer.step()  # bug
            if loss.item() < 0:
                optimizer.zero_grad()
            dump.step()


@planted("stale-gradient")
def cleared_before_the_loop_alone(path: Path) -> None:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.zero_grad()
    with recording(path, model) as dump:
        for _ in range(3):
            language_loss(model).backward()  # bug
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # bug
            dump.step()


# -- clipping and scaling -----------------------------------------------------------------------------------------------


@planted("clip-after-step")
def clipped_in_a_hook_of_the_trainer_after_the_step(path: Path) -> None:
    def on_step_end(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # bug

    model = Language()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            language_loss(model).backward()
            optimizer.step()
            on_step_end(model)
            optimizer.zero_grad()
            dump.step()


@planted("clip-after-step")
def values_clamped_by_hand_after_the_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.clamp_(-0.01, 0.01)  # type: ignore[union-attr] # bug
            optimizer.zero_grad()
            dump.step()


@planted("step-beside-scaler")
def second_optimizer_without_the_scaler(path: Path) -> None:
    model = Language()
    rest = [p for name, p in model.named_parameters() if not name.startswith(("head", "mlp"))]
    trunk = torch.optim.SGD(rest, 0.01)
    head = torch.optim.SGD([*model.head.parameters(), *model.mlp.parameters()], 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(language_loss(model)).backward()
            scaler.step(trunk)
            head.step()  # bug
            scaler.update()
            model.zero_grad()
            dump.step()


@planted("clip-before-unscale")
def clipped_by_value_while_scaled(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(classify(model)).backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)  # bug
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            dump.step()


@planted("clip-before-unscale")
def norm_clipped_by_hand_while_scaled(path: Path) -> None:
    model = Language()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(language_loss(model)).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)  # bug
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            dump.step()


# -- losses -------------------------------------------------------------------------------------------------------------


@planted("detached-term")
def penalty_of_weights_under_no_grad(path: Path) -> None:
    @torch.no_grad()
    def penalty(model: nn.Module) -> Tensor:
        return sum(p.square().sum() for p in model.parameters())  # type: ignore[return-value] # bug

    model = net()
    train(path, model, lambda: classify(model) + 1e-2 * penalty(model))  # bug


@planted("detached-term")
def load_balance_of_detached_probabilities(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(6, 4), nn.Linear(6, 12)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weights = self.router(x).softmax(-1)
            out = (self.experts(x).view(len(x), 4, 3) * weights[..., None]).sum(1)
            return out, weights.detach().mean(0).square().sum()  # bug

    def loss() -> Tensor:
        x, y = batch()
        out, balance = model(x)
        return F.cross_entropy(out, y) + 0.1 * balance  # bug

    model = Net()
    train(path, model, loss)


@planted("softmax-of-one")
def gate_over_a_single_expert(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.body = nn.Linear(6, 1), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) * torch.softmax(self.gate(x), dim=-1)  # bug

    model = Net()
    train(path, model, lambda: classify(model))


@planted("softmax-of-one")
def attention_over_the_dimension_of_heads(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.value, self.head = nn.Linear(16, 1), nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            weights = F.softmax(self.score(x), dim=2)  # bug
            return self.head((weights * self.value(x)).sum(1))

    model = Net()
    train(path, model, lambda: F.cross_entropy(model(torch.randn(8, 5, 16)), torch.randint(0, 3, (8,))))


@planted("softmax-twice")
def language_model_that_returns_probabilities(path: Path) -> None:
    class Net(Language):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).softmax(-1)

    model = Net()

    def loss() -> Tensor:
        tokens = ids()
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())  # bug

    train(path, model, loss)


@planted("softmax-twice")
def distillation_of_probabilities(path: Path) -> None:
    teacher, model = net(), net()

    def loss() -> Tensor:
        x, _ = batch()
        student = model(x).softmax(-1)
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        return F.kl_div(F.log_softmax(student, -1), wanted, reduction="batchmean")  # bug

    train(path, model, loss)


@planted("targets-outside")
def labels_counted_from_one(path: Path) -> None:
    model = nn.Linear(6, 1)

    def loss() -> Tensor:
        y = torch.randint(1, 3, (16,)).float()
        return F.binary_cross_entropy_with_logits(model(torch.randn(16, 6)).squeeze(-1), y)  # bug

    train(path, model, loss)


@planted("targets-outside")
def targets_normalised_like_inputs(path: Path) -> None:
    criterion, model = nn.BCEWithLogitsLoss(), nn.Linear(6, 2)

    def loss() -> Tensor:
        y = torch.randint(0, 2, (16, 2)).float()
        y = (y - y.mean()) / y.std()
        return criterion(model(torch.randn(16, 6)), y)  # bug

    train(path, model, loss)


@planted("broadcast-loss")
def value_head_against_returns(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.value = nn.Linear(6, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.value(self.body(x).tanh())

    model = Net()

    def loss() -> Tensor:
        returns = torch.randn(16)
        advantage = returns - model(torch.randn(16, 6))  # bug
        return advantage.pow(2).mean()

    train(path, model, loss)


@planted("broadcast-loss")
def regression_by_the_module_of_the_loss(path: Path) -> None:
    criterion, model = nn.SmoothL1Loss(beta=0.5), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    train(path, model, lambda: criterion(model(torch.randn(16, 6)), torch.randn(16)))  # bug


# -- modes --------------------------------------------------------------------------------------------------------------


@planted("dropout-in-eval")
def own_dropout_of_residuals_by_the_function(path: Path) -> None:
    class Block(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return F.dropout(super().forward(x), 0.2)  # bug

    model = Language(Block).eval()
    with recording(path, model) as dump, torch.no_grad():
        for _ in range(2):
            model(ids())
            dump.step()


@planted("dropout-in-eval")
def scaled_dot_product_attention_keeps_its_dropout(path: Path) -> None:
    class Block(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            n, length, width = x.shape
            q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)  # bug
            return self.out(out.transpose(1, 2).flatten(2))

    model = Language(Block).eval()
    with recording(path, model) as dump, torch.no_grad():
        for _ in range(2):
            model(ids())
            dump.step()


@planted("masked-row")
def padded_sequence_of_nothing(path: Path) -> None:
    model = Language()

    def loss() -> Tensor:
        tokens = ids()
        tokens[1] = 0
        x = model.embed(tokens)
        out = model.block(x, (tokens == 0)[:, None, None, :])
        return model.head(out).square().mean()

    class Block(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            scores, v = self.scores(x)
            assert mask is not None
            return self.join(scores.masked_fill(mask, float("-inf")).softmax(-1), v)  # bug

    model.block = Block()
    train(path, model, loss, torch.optim.SGD(model.parameters(), 0.0))


@planted("masked-row")
def causal_mask_that_leaves_out_the_token_itself(path: Path) -> None:
    class Block(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            scores, v = self.scores(x)
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(0)
            return self.join(torch.softmax(scores.masked_fill(future, -torch.inf), -1), v)  # bug

    model = Language(Block)
    train(path, model, lambda: language_loss(model), torch.optim.SGD(model.parameters(), 0.0))


@planted("dead-layer")
def relu_twice_with_a_sign_between(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = -F.relu(self.first(x))
            return self.second(F.relu(h - 1e-3))  # bug

    model = Net()
    train(path, model, lambda: classify(model))


@planted("dead-layer")
def relu_of_log_probabilities(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.second = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.act(self.first(x).log_softmax(-1)))  # bug

    model = Net()
    train(path, model, lambda: classify(model))


# -- half precision -----------------------------------------------------------------------------------------------------


@planted("half-angle")
def rotary_tables_cast_with_the_model(path: Path) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, 8, 2) / 8))
            self.proj = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[1], dtype=x.dtype)
            angles = torch.outer(places, self.frequencies)  # type: ignore[arg-type]
            return self.proj(x) * torch.cat([angles.cos(), angles.sin()], -1)  # bug

    model = Rotary().to(torch.bfloat16)
    train(path, model, lambda: model(torch.randn(1, 600, 8, dtype=torch.bfloat16)).float().square().mean())


@planted("half-angle")
def time_embedding_of_diffusion_in_half(path: Path) -> None:
    model = nn.Linear(16, 4).half()

    def loss() -> Tensor:
        times = torch.randint(0, 1000, (8,)).half()
        frequencies = torch.exp(-math.log(10000) * torch.arange(8) / 8).half()
        angles = times[:, None] * frequencies
        embedded = torch.cat([torch.sin(angles), torch.cos(angles)], -1)  # bug
        return model(embedded).float().square().mean()

    train(path, model, loss, torch.optim.SGD(model.parameters(), 1e-3))


@planted("half-index")
def ids_that_went_through_bfloat16(path: Path) -> None:
    table = nn.Embedding(4096, 4)

    def loss() -> Tensor:
        features = torch.randint(300, 2000, (4, 8)).to(torch.bfloat16)
        return table(features.long()).square().mean()  # bug

    train(path, table, loss)


@planted("half-index")
def packed_offsets_in_half(path: Path) -> None:
    model = nn.Linear(4, 4)

    def loss() -> Tensor:
        tokens = torch.randn(5000, 4)
        ends = torch.randint(2049, 4999, (6,)).half()
        return model(tokens.index_select(0, ends.int())).square().mean()  # bug

    train(path, model, loss)


@planted("sum-stalls")
def tokens_seen_in_bfloat16(path: Path) -> None:
    model = Language()
    seen = torch.zeros((), dtype=torch.bfloat16)

    def loss() -> Tensor:
        for _ in range(40):
            seen.add_(8.0)  # bug
        seen.fill_(4096.0)
        for _ in range(3):
            seen.add_(8.0)  # bug
        return language_loss(model)

    train(path, model, loss)


# -- memory -------------------------------------------------------------------------------------------------------------


@planted("saved-overwritten")
def sigmoid_output_clamped_through_data(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).sigmoid()
            h.data.clamp_(0.4, 0.6)  # bug
            return self.second(h)

    model = Net()
    train(path, model, lambda: classify(model))


@planted("saved-overwritten")
def weights_averaged_between_forward_and_backward(path: Path) -> None:
    model = net()
    average = [p.detach().clone() * 0.5 for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            loss = classify(model)
            for parameter, other in zip(model.parameters(), average, strict=True):
                parameter.data.copy_(other)  # bug
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
