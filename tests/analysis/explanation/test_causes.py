"""The cause of a difference is the first call behind the cut, told apart by what is at the cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from tests.analysis.by_distance.steps import record as record_steps

X = torch.linspace(-2, 2, 48).view(4, 12)


class Net(nn.Module):
    """Two layers with a norm between them; `change` takes the place of one part of its forward."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.change = change
        self.one, self.two = nn.Linear(12, 10), nn.Linear(10, 12)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 10))
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        h = nn.functional.gelu(h) if self.change == "gelu" else nn.functional.silu(h)
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + (1e-3 if self.change == "eps" else 1e-5)).sqrt()
        if self.change != "no scale":
            h = h * self.scale
        if self.change == "extra":
            h = h * 1.02
        if self.change == "detach":
            h = h.detach()
        with torch.no_grad():
            kept = self.mean * 0.9 + h.mean(0) * 0.1
            self.mean.copy_(kept)
        y = self.two(h)
        if self.change == "wiring":
            return (y + y).softmax(-1)
        return (y + x).softmax(-2 if self.change == "dim" else -1)


def step(net: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        net(X).square().sum().backward()
        optimizer.step()

    return run


def compared(record: Callable[..., Any], target: nn.Module, baseline: nn.Module) -> Any:
    return compare(record(step(target), model=target), record(step(baseline), model=baseline))


@pytest.mark.parametrize(
    ("change", "kind", "side", "call"),
    [
        ("gelu", "region", "target", "Aten.gelu.0.forward"),
        ("eps", "argument", "target", "Aten.add.0.forward"),
        ("no scale", "region", "baseline", "Aten.mul.0.forward"),
        ("extra", "region", "target", "Aten.mul.1.forward"),
        ("detach", "gradient", "target", "Aten.detach.1.forward"),
        ("wiring", "rewired", "target", "Aten.add.2.forward"),
        ("dim", "argument", "target", "Aten._softmax.0.forward"),
    ],
)
def test_a_change_of_the_program_is_named_at_its_call(
    change: str, kind: str, side: str, call: str, record: Callable[..., Any]
) -> None:
    found = compared(record, Net(change), Net())
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    place = getattr(found.cause.row, side)
    assert (found.cause.kind, place.call) == (kind, call), found.answer()
    opposite = compared(record, Net(), Net(change))
    assert opposite.exit_code == 1 and opposite.cause is not None
    assert call in (
        place.call for place in (opposite.cause.row.target, opposite.cause.row.baseline) if place
    ) or change in (
        "wiring",
        "detach",
    )


def test_other_weights_are_named_by_who_reads_them(record: Callable[..., Any]) -> None:
    other = Net()
    with torch.no_grad():
        other.scale[3] += 0.01
    found = compared(record, other, Net())
    assert found.cause is not None and found.cause.kind == "source"
    assert found.cause.row.target is not None and found.cause.row.target.call == "Aten.mul.0.forward"
    assert found.cause.text.startswith("it reads other contents of scale"), found.answer()


class Towers(nn.Module):
    """A policy and the reference that it is held against."""

    def __init__(self, asked: tuple[str, str]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.policy, self.reference = nn.Linear(12, 4), nn.Linear(12, 4)
        self.asked = asked

    def forward(self, x: Tensor) -> Tensor:
        one, two = (getattr(self, name)(x).log_softmax(-1) for name in self.asked)
        return (one - two).square().sum() + one[:, 0].mean() - two[:, 1].mean()


def test_a_model_that_is_not_asked_is_named(record: Callable[..., Any]) -> None:
    asked = ("reference", "reference"), ("policy", "reference")
    target, baseline = (record(step(model), model=model) for model in map(Towers, asked))
    found = compare(target, baseline)
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    assert (found.cause.side, found.cause.row.place.module) == ("baseline", "policy"), found.answer()


def test_other_random_numbers_are_named_as_such(record: Callable[..., Any]) -> None:
    def program(seed: int) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(seed)
            nn.functional.dropout(X.clone().requires_grad_(), 0.5).sum().backward()

        return run

    found = compare(record(program(1)), record(program(2)))
    assert found.cause is not None and found.cause.kind == "random"
    assert compare(record(program(1)), record(program(1))).verdict == "same"


class Rewritten(Net):
    """The same function, every part written otherwise; the buffer is bound anew."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("ni,oi->no", x, self.one.weight) + self.one.bias
        h = h * torch.sigmoid(h)
        centred = h - h.sum(-1, keepdim=True) / 10
        h = centred * (centred.square().sum(-1, keepdim=True) / 9 + 1e-5).rsqrt() * self.scale
        with torch.no_grad():
            self.mean = torch.lerp(self.mean, h.mean(0), 0.1)
        y = torch.addmm(x, h, self.two.weight.t()) + self.two.bias
        e = (y - y.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)


def in_steps(path: Path, net: nn.Module) -> Path:
    """Record two steps: the second reads what the first kept."""
    run = step(net)
    return record_steps(path, lambda number: run(), net, steps=2)


def test_a_rewriting_agrees_and_a_slip_in_it_is_named(record: Callable[..., Any], tmp_path: Path) -> None:
    honest = compare(in_steps(tmp_path / "rewritten", Rewritten()), in_steps(tmp_path / "plain", Net()))
    assert honest.exit_code == 0 and honest.verdict == "within", honest.answer()
    slipped = compared(record, Rewritten(), Net("gelu"))
    assert slipped.exit_code == 1 and slipped.cause is not None
    assert any(
        place and place.op in ("aten::gelu", "aten::sigmoid")
        for place in (slipped.cause.row.target, slipped.cause.row.baseline)
    ), slipped.answer()


# -- which call is the cause ---------------------------------------------------------------------------------------


class Biased(Net):
    """Adds a table that it makes itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.arange(12.0))


def test_what_is_done_with_a_table_is_named_and_not_the_table(record: Callable[..., Any]) -> None:
    found = compared(record, Biased(), Net())
    assert found.cause is not None and found.cause.row.place.call == "Aten.add.0.forward", found.answer()


def test_an_epsilon_that_hardly_shows_is_another_argument(record: Callable[..., Any]) -> None:
    def program(epsilon: float) -> Any:
        return record(lambda: (X.clone().requires_grad_().exp() + epsilon).log().sum().backward())

    found = compare(program(1e-6), program(1e-16))
    assert found.exit_code == 1 and found.cause is not None and found.cause.kind == "argument", found.answer()
    assert "1e-06" in found.cause.text
    assert compare(program(1e-9), program(1e-16)).exit_code == 0, "float32 does not hold it"


def test_the_same_elements_in_another_shape_are_named_at_their_view(record: Callable[..., Any]) -> None:
    square = X.reshape(-1)[:16].view(4, 4)

    def program(shape: tuple[int, int]) -> Any:
        return record(lambda: (square.clone().requires_grad_() * X.reshape(-1)[:4].view(shape)).sin().sum().backward())

    found = compare(program((1, 4)), program((4, 1)))
    assert found.cause is not None and found.cause.row.place.op == "aten::view", found.answer()
    assert "in shape [1, 4], in the baseline [4, 1]" in found.cause.text


def test_a_later_bug_is_not_put_on_what_is_written_otherwise_and_right(record: Callable[..., Any]) -> None:
    """The backward of a forward that is written otherwise reads what only that forward makes."""

    class Slipped(Rewritten):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 1.5

    class Times(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 1.0

    found = compared(record, Slipped(), Times())
    assert found.cause is not None and found.cause.kind == "argument", found.answer()
    assert "1.5, in the baseline 1.0" in found.cause.text


def test_what_cuts_a_gradient_off_is_named_with_the_parameters_that_lose_theirs(record: Callable[..., Any]) -> None:
    found = compared(record, Net("detach"), Net())
    assert found.cause is not None and found.cause.row.target is not None
    assert found.cause.text.startswith("no gradient flows back through it in the target, in the baseline one does; ")
    for name in ("one.weight", "one.bias", "scale"):
        assert name in found.cause.text
    assert found.cause.text.endswith("have a gradient in the baseline only")


def test_a_source_that_differs_is_named_where_it_is_read_first(record: Callable[..., Any]) -> None:
    """A row for padding that is never asked for differs, and only the decay of an optimizer shows it.

    So the two do not read the same, and nothing is said of their inputs.
    """

    def trained(padding: int | None) -> Any:
        torch.manual_seed(0)
        model = nn.Embedding(6, 4, padding_idx=padding)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.2)
        words = torch.tensor([0, 1, 2, 3])

        def run() -> None:
            optimizer.zero_grad()
            model(words)[1:].square().sum().backward()
            optimizer.step()

        return record(run, model=model)

    found = compare(trained(None), trained(0))
    assert found.cause is not None and found.cause.kind == "argument", found.answer()
    assert found.cause.row.place.op == "aten::embedding" and "padding_idx" in found.cause.text
    assert not found.cause.inputs


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_that_one_side_does_not_clear_are_named_with_who_clears_them(clears: bool, tmp_path: Path) -> None:
    def trained(name: str, clears: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def body(_: int) -> None:
            model(X).square().mean().backward()
            optimizer.step()
            if clears:
                optimizer.zero_grad()

        return record_steps(tmp_path / name, body, model, steps=2)

    found = compare(trained("target", clears), trained("baseline", not clears))
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    row = found.cause.row
    adding, clearing = (row.baseline, row.target) if clears else (row.target, row.baseline)
    assert adding is not None and (adding.step, adding.op, adding.phase) == (1, "aten::add_.Tensor", "backward")
    assert clearing is not None and "zero_grad" in Path(__file__).read_text().splitlines()[_line(clearing.source) - 1]
    assert "what was there before the step" in found.cause.text and "3 more" in found.cause.text


@pytest.mark.parametrize("target", [2, 4])
def test_a_round_too_few_or_too_many_is_a_missing_call(target: int, record: Callable[..., Any]) -> None:
    """What reads the last round's result reads another one, and is right."""

    class Rounds(nn.Module):
        def __init__(self, rounds: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rounds, self.lin = rounds, nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            votes = self.lin(x)
            logits, out = torch.zeros(4, 3), votes
            for _ in range(self.rounds):
                out = logits.softmax(-1) * votes
                logits = logits + (votes.detach() * out.detach().sum(0))
            return out.square() * votes.sigmoid()

    found = compared(record, Rounds(target), Rounds(3))
    assert found.cause is not None and found.cause.kind == "region", found.answer()
    assert found.cause.row.place.op == "aten::_softmax" and "no such call" in found.cause.text


def test_an_epsilon_is_named_and_not_what_divides_by_the_sum(tmp_path: Path) -> None:
    """The sums are a hair apart, within rounding; what is divided by their smallest elements is not."""

    def run(epsilon: float) -> Path:
        path = tmp_path / str(epsilon)
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.Adam(model.parameters(), eps=epsilon)
        with DumpMode(DumpConfig(path=path, data="tensor"), model=model):
            (model(torch.randn(6, 8) * torch.tensor([1e-4, *[1.0] * 7]))).square().sum().backward()
            optimizer.step()
        return path

    found = compare(run(1e-6), run(1e-8))
    assert found.cause is not None and found.cause.row.place.op == "aten::add_.Tensor", found.answer()
    assert "other is 1e-06, in the baseline 1e-08" in found.cause.text


def _line(source: str) -> int:
    return int(source.rpartition(":")[2].split()[0])


@pytest.mark.parametrize("factors", [(1.0, 1.5), (1.5, 1.0)])
def test_a_product_with_one_is_named_and_not_what_goes_on_from_it(factors: tuple[float, float], tmp_path: Path) -> None:
    """What it makes is a value of both sides: the next product seems to be given another number."""

    def run(factor: float) -> Path:
        path = tmp_path / str(factor)
        torch.manual_seed(0)
        with DumpMode(DumpConfig(path=path, data="tensor")):
            (torch.randn(3, 4) * factor).mul(3).sum()
        return path

    found = compare(*map(run, factors))
    assert found.cause is not None
    assert found.cause.row.place.call == "Aten.mul.0.forward"
    assert f"other is {factors[0]}, in the baseline {factors[1]}" in found.cause.text


@pytest.mark.parametrize("baseline_steps", [False, True])
def test_an_optimizer_that_steps_between_micro_batches_is_named(
    baseline_steps: bool, record: Callable[..., Any]
) -> None:
    """On either side: the later forward reads other weights, and none of its calls is the mistake."""

    def accumulated(steps_each_time: bool) -> Any:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def run() -> None:
            for part in X.split(2):
                net(part).square().sum().backward()
                if steps_each_time:
                    optimizer.step()  # between
            if not steps_each_time:
                optimizer.step()

        return record(run, model=net)

    found = compare(accumulated(not baseline_steps), accumulated(baseline_steps))
    assert found.exit_code == 1 and found.cause is not None
    row = found.cause.row
    place = row.baseline if baseline_steps else row.target
    assert place is not None and "# between" in Path(__file__).read_text().splitlines()[_line(place.source) - 1]
    assert f"none of the {'target' if baseline_steps else 'baseline'}'s does" in found.answer()
