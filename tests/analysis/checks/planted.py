"""Programs with a planted bug each: the rule that must find it, and its line, which ends in the comment ``# bug``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import batch, net, recording

Record = Callable[[Path], None]


@dataclass(frozen=True)
class Planted:
    rule: str
    record: Record


PLANTED: dict[str, Planted] = {}


def planted(rule: str) -> Callable[[Record], Record]:
    def add(record: Record) -> Record:
        name = record.__name__.replace("_", " ")
        assert name not in PLANTED
        PLANTED[name] = Planted(rule, record)
        return record

    return add


def train(
    path: Path,
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 2,
) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    with recording(path, model) as dump:
        for _ in range(steps):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def classify(model: nn.Module) -> Tensor:
    x, y = batch()
    return F.cross_entropy(model(x), y)


# -- gradients ----------------------------------------------------------------------------------------------------------


class TwoParts(nn.Module):
    """An encoder and a head; `between` is what is done in between."""

    def __init__(self, between: Callable[[Tensor], Tensor] = lambda h: h) -> None:
        super().__init__()
        self.encoder, self.head, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.encoder(x).relu()))


@planted("no-gradient")
def encoder_detached(path: Path) -> None:
    model = TwoParts(lambda h: h.detach())  # bug
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def encoder_in_no_grad_later(path: Path) -> None:
    class Net(TwoParts):
        def forward(self, x: Tensor) -> Tensor:
            h = self.encoder(x)
            with torch.no_grad():
                h = h.relu()  # bug
            return self.head(h)

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def scale_read_by_its_data(path: Path) -> None:
    class Net(TwoParts):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x) + 0.1 * self.norm(self.encoder(x)).detach())  # bug

    model = Net()
    train(path, model, lambda: classify(model))


def _loop(path: Path, order: str) -> None:
    """Train in an order of zero_grad (z), forward (f), backward (b), step (s) and clipping (c)."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    with recording(path, model) as dump:
        for _ in range(2):
            for what in order:
                if what == "f":
                    loss = classify(model)
                elif what == "b":
                    loss.backward()
                elif what == "z":
                    optimizer.zero_grad()  # bug
                elif what == "Z":
                    model.zero_grad()
                elif what == "s":
                    optimizer.step()  # bug
                else:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # bug
            dump.step()


@planted("gradient-dropped")
def cleared_before_the_step(path: Path) -> None:
    _loop(path, "fbzs")


@planted("gradient-dropped")
def cleared_by_the_model_before_the_step(path: Path) -> None:
    _loop(path, "fbZs")


@planted("gradient-dropped")
def cleared_before_the_step_and_after_it(path: Path) -> None:
    _loop(path, "zfbzsz")


@planted("gradient-applied-twice")
def stepped_twice(path: Path) -> None:
    _loop(path, "fbssz")


@planted("gradient-applied-twice")
def head_in_two_optimizers(path: Path) -> None:
    model = TwoParts()
    first = torch.optim.AdamW(model.parameters())
    second = torch.optim.SGD(model.head.parameters(), 0.1)
    with recording(path, model):
        classify(model).backward()
        first.step()
        second.step()  # bug


@planted("clip-after-step")
def clipped_after_the_step(path: Path) -> None:
    _loop(path, "fbscz")


@planted("clip-after-step")
def values_clipped_after_the_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model):
        classify(model).backward()
        optimizer.step()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)  # bug


@planted("no-optimizer")
def biases_left_out(path: Path) -> None:
    model = nn.ModuleDict({"body": net(), "head": nn.Linear(3, 3)})
    decayed = [p for n, p in model.named_parameters() if n.endswith("weight")]

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model["head"](model["body"](x)), y)  # bug

    train(path, model, loss, torch.optim.AdamW(decayed))


@planted("no-optimizer")
def layer_added_later(path: Path) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])})
    optimizer = torch.optim.AdamW(model.parameters())
    model["layers"].append(nn.Linear(6, 3))

    def loss() -> Tensor:
        x, y = batch()
        for layer in model["layers"]:
            x = layer(x)  # bug
        return F.cross_entropy(x, y)

    train(path, model, loss, optimizer)


@planted("no-optimizer")
def bias_left_out_of_one_layer(path: Path) -> None:
    model = nn.Linear(6, 3)

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model(x), y)  # bug

    train(path, model, loss, torch.optim.SGD([model.weight], 0.1))


@planted("stale-gradient")
def never_cleared(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()  # bug
            dump.step()


@planted("stale-gradient")
def cleared_in_another_optimizer(path: Path) -> None:
    model = net()
    optimizer, other = (torch.optim.SGD(model.parameters(), 0.1, foreach=False) for _ in range(2))
    other.param_groups[0]["params"] = []
    with recording(path, model) as dump:
        for _ in range(3):
            other.zero_grad()
            classify(model).backward()
            optimizer.step()  # bug
            dump.step()


@planted("stale-gradient")
def never_cleared_in_one_recorded_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model):
        for _ in range(2):
            classify(model).backward()
            optimizer.step()  # bug


# -- scalers ------------------------------------------------------------------------------------------------------------


def _scaled(
    path: Path, clip: str, own_step: bool, optimizer_class: type[torch.optim.Optimizer] = torch.optim.SGD
) -> None:
    model = net()
    optimizer = optimizer_class(model.parameters(), 1e-3)  # type: ignore[call-arg]
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    with recording(path, model) as dump:
        for _ in range(2):
            scaler.scale(classify(model)).backward()
            if clip == "before":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # bug
                scaler.unscale_(optimizer)
            elif clip == "never unscaled":
                nn.utils.clip_grad_value_(model.parameters(), 1.0)  # bug
            if own_step:
                optimizer.step()  # bug
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            dump.step()


@planted("step-beside-scaler")
def own_step_beside_the_scaler(path: Path) -> None:
    _scaled(path, "", own_step=True)


@planted("step-beside-scaler")
def own_step_of_adam_beside_the_scaler(path: Path) -> None:
    _scaled(path, "", own_step=True, optimizer_class=torch.optim.AdamW)


@planted("clip-before-unscale")
def clipped_before_unscale(path: Path) -> None:
    _scaled(path, "before", own_step=False)


@planted("clip-before-unscale")
def clipped_and_never_unscaled_by_hand(path: Path) -> None:
    _scaled(path, "never unscaled", own_step=False)


# -- losses -------------------------------------------------------------------------------------------------------------


@planted("detached-term")
def second_term_detached(path: Path) -> None:
    model = TwoParts()

    def loss() -> Tensor:
        penalty = model.encoder.weight.square().mean()
        return classify(model) + 0.1 * penalty.detach()  # bug

    train(path, model, loss)


@planted("detached-term")
def term_without_grad(path: Path) -> None:
    model = TwoParts()

    def loss() -> Tensor:
        with torch.no_grad():
            penalty = model.head.weight.abs().sum()
        total = penalty * 0.01
        return total + classify(model)  # bug

    train(path, model, loss)


@planted("detached-term")
def one_of_three_terms_detached(path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)})

    def loss() -> Tensor:
        x, y = batch()
        one, two = (F.cross_entropy(model[name](x), y) for name in ("a", "b"))
        total = one + two.detach()  # bug
        return total + F.mse_loss(model["a"](x), model["b"](x))

    train(path, model, loss)


@planted("softmax-of-one")
def softmax_of_a_single_logit(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    train(path, model, lambda: F.mse_loss(model(batch()[0]).softmax(-1), torch.rand(16, 1)))  # bug


@planted("softmax-of-one")
def cross_entropy_over_a_single_class(path: Path) -> None:
    model = nn.Linear(6, 1)
    train(path, model, lambda: F.cross_entropy(model(batch()[0]), torch.zeros(16, dtype=torch.long)))  # bug


@planted("softmax-of-one")
def attention_pooled_over_the_wrong_dimension(path: Path) -> None:
    model = nn.ModuleDict({"score": nn.Linear(6, 1), "head": nn.Linear(6, 3)})

    def loss() -> Tensor:
        x = torch.randn(4, 5, 6)
        weight = torch.softmax(model["score"](x), dim=-1)  # bug
        return F.cross_entropy(model["head"]((weight * x).sum(1)), torch.randint(0, 3, (4,)))

    train(path, model, loss)


@planted("softmax-twice")
def cross_entropy_of_probabilities(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=-1))
    train(path, model, lambda: F.cross_entropy(model(batch()[0]), batch()[1]))  # bug


@planted("softmax-twice")
def log_softmax_of_log_softmax(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(dim=-1))
    train(path, model, lambda: nn.CrossEntropyLoss()(model(batch()[0]), batch()[1]))  # bug


@planted("softmax-twice")
def sequences_of_probabilities(path: Path) -> None:
    model = nn.Linear(6, 4)

    def loss() -> Tensor:
        scores = model(torch.randn(3, 5, 6)).softmax(-1)
        return F.cross_entropy(scores.reshape(-1, 4), torch.randint(0, 4, (15,)))  # bug

    train(path, model, loss)


@planted("targets-outside")
def labels_of_minus_one_and_one(path: Path) -> None:
    model = nn.Linear(6, 1)

    def loss() -> Tensor:
        labels = torch.randint(0, 2, (16, 1)).float() * 2 - 1
        return F.binary_cross_entropy_with_logits(model(batch()[0]), labels)  # bug

    train(path, model, loss)


@planted("targets-outside")
def counts_as_labels(path: Path) -> None:
    model = nn.Linear(6, 3)
    labels = torch.randint(0, 5, (16, 3)).float()
    labels[0, 0] = 4.0
    train(path, model, lambda: nn.BCEWithLogitsLoss()(model(batch()[0]), labels))  # bug


@planted("broadcast-loss")
def column_against_row(path: Path) -> None:
    model = nn.Linear(6, 1)
    train(path, model, lambda: F.mse_loss(model(batch()[0]), torch.randn(16)))  # bug


@planted("broadcast-loss")
def column_against_row_by_hand(path: Path) -> None:
    model = nn.Linear(6, 1)
    target = torch.randn(16)
    train(path, model, lambda: (model(batch()[0]) - target).square().mean())  # bug


@planted("broadcast-loss")
def smooth_column_against_row(path: Path) -> None:
    model = nn.Linear(6, 1)
    train(path, model, lambda: F.smooth_l1_loss(torch.randn(16), model(batch()[0])))  # bug


@planted("broadcast-loss")
def row_against_column_by_hand(path: Path) -> None:
    model = nn.Linear(6, 1)
    target = torch.randn(16)
    train(path, model, lambda: (target - model(batch()[0])).abs().mean())  # bug


# -- layers -------------------------------------------------------------------------------------------------------------


class Dropping(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.head, self.kind = nn.Linear(6, 8), nn.Linear(8, 3), kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if self.kind == "dropout":
            h = F.dropout(h, 0.3)  # bug
        elif self.kind == "channels":
            h = F.dropout1d(h[None], p=0.5)[0]  # bug
        else:
            q = h.view(1, 2, -1, 4)
            h = F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).reshape(-1, 8)  # bug
        return self.head(h)


def _evaluated(path: Path, kind: str) -> None:
    model = Dropping(kind).eval()
    with torch.no_grad(), recording(path, model):
        model(batch()[0])


@planted("dropout-in-eval")
def dropout_without_its_flag(path: Path) -> None:
    _evaluated(path, "dropout")


@planted("dropout-in-eval")
def channel_dropout_without_its_flag(path: Path) -> None:
    _evaluated(path, "channels")


@planted("dropout-in-eval")
def attention_drops_in_eval(path: Path) -> None:
    _evaluated(path, "attention")


@planted("masked-row")
def row_of_attention_masked_by_hand(path: Path) -> None:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        x = model(torch.randn(2, 5, 6))
        scores = x @ x.transpose(1, 2)
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(), -torch.inf)
        return (scores.softmax(-1) @ x).square().mean()  # bug

    train(path, model, loss, steps=1)


@planted("masked-row")
def row_of_padding_masked(path: Path) -> None:
    model = nn.Linear(6, 3)

    def loss() -> Tensor:
        kept = torch.tensor([[1.0, 1, 0], [0, 0, 0]])
        scores = model(torch.randn(2, 6)) + kept.log()
        return -F.log_softmax(scores, -1)[0, 0]  # bug

    train(path, model, loss, steps=1)


@planted("dead-layer")
def bias_far_below_zero(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(model[0].bias, -50.0)

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model(x), y)  # bug

    train(path, model, loss)


@planted("dead-layer")
def convolution_that_is_dead(path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3))
    nn.init.constant_(model[0].bias, -90.0)
    images = torch.rand(2, 3, 8, 8)
    train(path, model, lambda: F.cross_entropy(model(images), torch.tensor([0, 1])))  # bug


# -- precision ----------------------------------------------------------------------------------------------------------


def _rotated(path: Path, angles: Callable[[int], Tensor]) -> None:
    model = nn.Linear(8, 8).to(torch.bfloat16)

    def loss() -> Tensor:
        x = model(torch.randn(1, 700, 8, dtype=torch.bfloat16))
        turned = angles(700)
        return (x * torch.cat([turned, turned], -1).cos().to(x.dtype)).float().square().mean()  # bug

    train(path, model, loss, steps=1)


@planted("half-angle")
def positions_in_bfloat16(path: Path) -> None:
    frequencies = 1 / 1000.0 ** (torch.arange(4).float() / 4)
    _rotated(path, lambda n: torch.arange(n, dtype=torch.bfloat16)[:, None] * frequencies)


@planted("half-angle")
def frequencies_in_bfloat16(path: Path) -> None:
    frequencies = (1 / 1000.0 ** (torch.arange(4).float() / 4) * 0.9).to(torch.bfloat16)
    _rotated(path, lambda n: torch.outer(torch.arange(n).float(), frequencies.float()))


@planted("half-angle")
def angles_in_bfloat16(path: Path) -> None:
    frequencies = 1 / 1000.0 ** (torch.arange(4).float() / 4)
    _rotated(path, lambda n: (torch.arange(n).float()[:, None] * frequencies).to(torch.bfloat16))


@planted("half-index")
def positions_summed_in_bfloat16(path: Path) -> None:
    model = nn.Embedding(800, 8)

    def loss() -> Tensor:
        mask = torch.ones(1, 700, dtype=torch.bfloat16)
        positions = (mask.float().cumsum(-1) - 1).to(mask.dtype).long()  # bug
        return model(positions).square().mean()

    train(path, model, loss, steps=1)


@planted("half-index")
def rows_gathered_by_float16(path: Path) -> None:
    model = nn.Linear(4, 4)

    def loss() -> Tensor:
        table = model(torch.randn(3000, 4))
        return table[torch.arange(2900).half().long()].square().mean()  # bug

    train(path, model, loss, steps=1)


def _counted(path: Path, add: Callable[[Tensor], object]) -> None:
    model = net()
    seen = torch.tensor(256.0, dtype=torch.bfloat16)

    def loss() -> Tensor:
        add(seen)
        return classify(model)

    train(path, model, loss, steps=1)


@planted("sum-stalls")
def counter_in_bfloat16(path: Path) -> None:
    _counted(path, lambda seen: seen.add_(1))  # bug


@planted("sum-stalls")
def total_in_bfloat16(path: Path) -> None:
    one = torch.tensor(0.75, dtype=torch.bfloat16)
    _counted(path, lambda seen: seen + one)  # bug


@planted("sum-stalls")
def counts_in_float16(path: Path) -> None:
    model, seen = net(), torch.full((3,), 2048.0, dtype=torch.float16)

    def loss() -> Tensor:
        seen.add_(torch.ones(3, dtype=torch.float16))  # bug
        return classify(model)

    train(path, model, loss, steps=1)


# -- memory -------------------------------------------------------------------------------------------------------------


@planted("saved-overwritten")
def activation_written_through_data(path: Path) -> None:
    model = TwoParts()

    def loss() -> Tensor:
        x, y = batch()
        h = model.encoder(x).sigmoid()
        out = model.head(h)
        h.data.mul_(0.5)  # bug
        return F.cross_entropy(out, y)

    train(path, model, loss)


@planted("saved-overwritten")
def weight_written_through_data(path: Path) -> None:
    model = TwoParts()

    def loss() -> Tensor:
        found = classify(model)
        model.head.weight.data.clamp_(-0.1, 0.1)  # bug
        return found

    train(path, model, loss)


@planted("saved-overwritten")
def buffer_reused_for_the_next_batch(path: Path) -> None:
    model = nn.Linear(6, 3)
    buffer = torch.zeros(16, 6)

    def loss() -> Tensor:
        found = torch.zeros(())
        for _ in range(2):
            x, y = batch()
            buffer.data.copy_(x)  # bug
            found = found + F.cross_entropy(model(buffer), y)
        return found

    train(path, model, loss)
