"""What a step is for: losses, gradients by name, what it leaves, the outputs of an inference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import compare
from tests.analysis.by_distance.steps import record as record_steps

X = torch.linspace(-2, 2, 48).view(4, 12)


class Queue(nn.Module):
    """Keeps its last rows in a buffer, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.lin = nn.Linear(12, 3)
        self.register_buffer("queue", torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x)
        loss = (h @ self.queue.clone()).logsumexp(1).mean()
        with torch.no_grad():
            new = h.detach()[:2].T
            if self.way == "slice":
                self.queue[:, 2:4] = new
            elif self.way == "index":
                self.queue.index_copy_(1, torch.tensor([2, 3]), new)
            elif self.way == "rebound":
                self.queue = torch.cat((self.queue[:, :2], new, self.queue[:, 4:]), 1)
            elif self.way == "cloned":
                queue = self.queue.clone()
                queue[:, 2:4] = new
                self.queue = queue
            elif self.way == "wrong place":
                self.queue[:, 3:5] = new
            elif self.way == "wrong place, rebound":
                self.queue = torch.cat((self.queue[:, :3], new, self.queue[:, 5:]), 1)
        return loss


def compared(path: Path, target: str, baseline: str, steps: int = 2) -> Any:
    dumps = []
    for side, way in (("target", target), ("baseline", baseline)):
        model = Queue(way)
        dumps.append(
            record_steps(path / side, lambda step, model=model: model(X + step).backward(), model, steps=steps)
        )
    return compare(*dumps)


WAYS = ("slice", "index", "rebound", "cloned")


@pytest.mark.parametrize("target", WAYS)
@pytest.mark.parametrize("baseline", WAYS)
def test_a_buffer_is_the_same_however_it_is_kept(target: str, baseline: str, tmp_path: Path) -> None:
    found = compared(tmp_path, target, baseline)
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("target", ["rebound", "cloned"])
def test_whether_a_lone_step_keeps_what_it_makes_nobody_knows(target: str, tmp_path: Path) -> None:
    found = compared(tmp_path, target, "slice", steps=1)
    assert (found.exit_code, found.cause) == (2, None), found.answer()
    assert "nobody knows left behind" in found.answer()


@pytest.mark.parametrize("baseline", WAYS)
@pytest.mark.parametrize("target", ["wrong place", "wrong place, rebound", "nowhere"])
def test_a_buffer_that_was_left_otherwise_is_found(target: str, baseline: str, tmp_path: Path) -> None:
    rebound = "rebound" in target and baseline in ("rebound", "cloned")
    if rebound or (target == "nowhere" and baseline in ("rebound", "cloned")):
        pytest.skip("neither side writes memory that outlives the step: the next step's read tells")
    assert compared(tmp_path, target, baseline, steps=1).exit_code == 1


def test_outputs_of_an_inference_count(record: Callable[..., Any]) -> None:
    def run(model: nn.Module) -> Any:
        def body() -> None:
            with torch.no_grad():
                model(X)

        return record(body, model=model)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    wrong = nn.Sequential(model[0], nn.ReLU(), nn.Linear(8, 2))
    wrong[2].load_state_dict({name: 1.001 * value for name, value in model[2].state_dict().items()})
    assert compare(run(model), run(model)).verdict == "same"
    found = compare(run(wrong), run(model))
    assert found.exit_code == 1 and found.cause is not None and found.cause.row.place.module == "2"


def test_without_modules_what_nothing_reads_is_an_output(record: Callable[..., Any]) -> None:
    one = record(lambda: (X.cos() * 2).sum(1))
    same, other = record(lambda: (X.cos() + X.cos()).sum(1)), record(lambda: (X.cos() * 2.01).sum(1))
    assert compare(one, same).exit_code == 0
    assert compare(one, other).exit_code == 1


# -- gradients -----------------------------------------------------------------------------------------------------


def trained(update: Callable[[nn.Module], object], *, adam: bool = False) -> tuple[Callable[[], None], nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(12, 3)
    optimizer = torch.optim.Adam(model.parameters()) if adam else None

    def run() -> None:
        model(X).square().mean().backward()
        update(model)
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=adam)

    return run, model


def gradient(model: nn.Module) -> Tensor:
    assert isinstance(model.weight.grad, Tensor)
    return model.weight.grad


@pytest.mark.parametrize("adam", [False, True])
def test_what_is_made_of_a_gradient_after_the_backward_is_an_end(adam: bool, record: Callable[..., Any]) -> None:
    """The first step of Adam takes no notice of a gradient's scale, and its state is made within the step."""

    def scaled(by: float) -> Any:
        run, model = trained(lambda model: gradient(model).mul_(by), adam=adam)
        return record(run, model=model)

    found = compare(scaled(0.97), scaled(1.0))
    assert found.exit_code == 1 and found.cause is not None
    assert found.cause.kind == "argument" and found.cause.row.place.call == "Aten.mul_.0.forward", found.answer()
    assert compare(scaled(0.97), scaled(0.97)).exit_code == 0


def test_what_a_program_computes_with_its_gradients_shows_elsewhere(record: Callable[..., Any]) -> None:
    """The memory of a gradient is free for what the program computes its update in."""

    def in_place(model: nn.Module) -> None:
        model.weight.detach().add_(gradient(model).mul_(-0.1))

    def apart(model: nn.Module) -> None:
        model.weight.detach().add_(gradient(model), alpha=-0.1)

    sides = [record(run, model=model) for run, model in map(trained, (in_place, apart))]
    found = compare(*sides)
    assert found.exit_code == 0, found.answer()


def test_a_frozen_parameter_under_another_name_has_no_gradient_though_another_value_is_the_same(
    record: Callable[..., Any],
) -> None:
    """The gradient of a bias of one row is that of the layer's output as well."""

    def program(name: str, frozen: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential()
        model.add_module(name, nn.Linear(12, 3))
        model.add_module(f"{name}_head", nn.Linear(3, 2))
        model[0].bias.requires_grad_(not frozen)
        return record(lambda: model(X[0]).tanh().sum().backward(), model=model)

    found = compare(program("one", True), program("other", False))
    assert found.exit_code == 1 and found.cause is not None
    assert "other.bias has a gradient in the baseline only" in found.cause.text
    assert compare(program("one", False), program("other", False)).exit_code == 0


def test_a_number_that_is_read_is_what_an_inference_without_outputs_is_for(record: Callable[..., Any]) -> None:
    def evaluated(divisor: int) -> Any:
        return record(lambda: (X.exp().sum() / divisor).item())

    found = compare(evaluated(15), evaluated(16))
    assert found.exit_code == 1 and found.cause is not None and found.cause.kind == "argument", found.answer()
    assert compare(evaluated(16), evaluated(16)).exit_code == 0


# -- losses ------------------------------------------------------------------------------------------------------------


def asked(record: Callable[..., Any], *calls: Callable[[Tensor], object]) -> Any:
    """Record backward on parts or multiples of a loss by row."""
    torch.manual_seed(0)
    model = nn.Linear(12, 1)

    def step() -> None:
        model.zero_grad()
        loss = model(X).square()
        for call in calls:
            call(loss)

    return record(step, model=model)


def by_row(loss: Tensor) -> None:
    loss.backward(torch.full_like(loss, 0.25))


def mean(loss: Tensor) -> None:
    loss.mean().backward()


def scaled(loss: Tensor) -> None:
    loss.sum().backward(torch.tensor(0.25))


def first(loss: Tensor) -> None:
    loss[:2].sum().div(4).backward(retain_graph=True)


def last(loss: Tensor) -> None:
    loss[2:].backward(torch.full((2, 1), 0.25))


@pytest.mark.parametrize("calls", [(by_row,), (scaled,), (first, last)], ids=["by row", "scaled", "in parts"])
def test_a_loss_is_what_backward_differentiates(calls: Any, record: Callable[..., Any]) -> None:
    pair = asked(record, *calls), asked(record, mean)
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    "calls", [(first,), (first, first), (first, first, last)], ids=["lacking", "twice", "one twice"]
)
def test_a_part_of_a_loss_that_is_lacking_or_there_twice_is_found(calls: Any, record: Callable[..., Any]) -> None:
    pair = asked(record, *calls), asked(record, first, last)
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == 1, found.answer()


@pytest.mark.parametrize("factor", [1.0, 2.0], ids=["equal", "another number"])
def test_what_ends_in_nothing_but_nan_is_not_said_to_agree(factor: float, record: Callable[..., Any]) -> None:
    """Nothing tells such ends apart: of equal runs each bit is the same, of others nobody knows."""

    def train(by: float) -> None:
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 4), torch.ones(3, 4)
        lost = (x * 0).sum(1, keepdim=True)
        (layer(x) * by * lost / lost).mean().backward()

    found = compare(*(record(partial(train, by)) for by in (factor, 1.0)))
    assert found.exit_code == (0 if factor == 1 else 2), found.answer()


# -- beside a training step -----------------------------------------------------------------------------------------------


def scored(record: Callable[..., Any], score: Callable[[Tensor], object]) -> Any:
    """Record a training step after which a score is computed that nothing reads."""
    torch.manual_seed(0)
    model = nn.Linear(12, 3)

    def step() -> None:
        model(X).square().mean().backward()
        with torch.no_grad():
            score(model(X))

    return record(step, model=model)


def test_a_score_beside_a_training_step_is_an_end(record: Callable[..., Any]) -> None:
    three, four = (scored(record, lambda y, by=by: y.logsumexp(1) / by) for by in (3.0, 4.0))
    found = compare(three, four)
    assert found.exit_code == 1 and found.cause is not None
    assert found.cause.kind == "argument" and found.cause.row.place.op == "aten::div.Tensor", found.answer()
    by_hand = scored(record, lambda y: (y.logsumexp(1) * 0.25).clone())
    assert compare(four, by_hand).exit_code == 0


@pytest.mark.parametrize(
    ("target", "baseline"),
    [
        (lambda y: None, lambda y: y.logsumexp(1) / 3),
        (lambda y: (y.sum(), y.square().sum()), lambda y: y.exp().sum()),
        (lambda y: y.sort(0).values.mean(), lambda y: y.flip(0).sort(0).values.mean()),
    ],
    ids=["on one side", "more on one side", "the order of a sort"],
)
def test_what_a_program_looks_at_beside_a_training_step_is_its_own_affair(
    target: Callable[[Tensor], object], baseline: Callable[[Tensor], object], record: Callable[..., Any]
) -> None:
    found = compare(scored(record, target), scored(record, baseline))
    assert found.exit_code == 0, found.answer()


def test_what_one_side_alone_makes_beside_a_training_step_is_said(record: Callable[..., Any]) -> None:
    without, scores = scored(record, lambda y: None), scored(record, lambda y: y.logsumexp(1) / 3)
    for dumps, side in (((without, scores), "baseline"), ((scores, without), "target")):
        (note,) = [note for note in compare(*dumps).all_notes if "alone makes" in note]
        assert f"the {side} alone makes Aten.div" in note and "[4]" in note and "test_ends.py" in note
    assert not [note for note in compare(scores, scores).all_notes if "alone makes" in note]


@pytest.mark.parametrize("lets", [True, False], ids=["by hand", "pointer stays"])
def test_a_count_may_be_kept_in_python(lets: bool, record: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model, pointer = nn.Linear(12, 3), torch.tensor(5)

    def step(counts: bool, reads: bool) -> None:
        model(X).square().mean().backward()
        with torch.no_grad():
            if reads:
                model.weight[int(pointer) % 3] *= 0.9
            if counts:
                pointer.add_(1)

    def one(counts: bool, reads: bool) -> Any:
        model.zero_grad()
        pointer.fill_(5)
        return record(lambda: step(counts, reads), model=model)

    with_pointer, without = one(True, not lets), one(False, not lets)
    assert compare(without, with_pointer).exit_code == (0 if lets else 1)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_gradients_that_a_program_asks_for_are_those_that_another_accumulates(
    factor: float, record: Callable[..., Any]
) -> None:
    def trained_by(asks: bool, by: float) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(12, 3)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

        def step() -> None:
            loss = (model(X) * by).square().mean()
            if asks:
                for one, slope in zip(
                    model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
                ):
                    one.grad = slope
            else:
                loss.backward()
            optimizer.step()

        return record(step, model=model)

    pair = trained_by(False, 1.0), trained_by(True, factor)
    for found in (compare(*pair), compare(*pair[::-1])):
        assert found.exit_code == int(factor != 1), found.answer()


@pytest.mark.parametrize("target", [True, False])
def test_a_parameter_that_is_expanded_is_left_once(target: bool, record: Callable[..., Any]) -> None:
    """A view that repeats its elements is read first, and is larger than the parameter."""

    def trained_with(expanded: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Module()
        model.start = nn.Parameter(torch.linspace(-1, 1, 12))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            start = model.start.expand(4, 12) if expanded else model.start
            (start * X).square().mean().backward()
            optimizer.step()

        return record(step, model=model)

    found = compare(trained_with(target), trained_with(not target))
    assert found.exit_code == 0, found.answer()
