"""`replay(..., substitute=...)`: what would have come out had one tensor been another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import ReplayError, replay
from aten_dump.analysis.rerun.graft import graft
from tests.models import build, seed_all

A = torch.ops.aten


class Change(TorchDispatchMode):
    """Gives the n-th call of an op another result: the program that a graft is checked against."""

    def __init__(self, op: Any, n: int, result: torch.Tensor) -> None:
        super().__init__()
        self.op, self.n, self.result = op, n, result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is self.op:
            self.n -= 1
            if self.n == -1:
                return self.result.clone()
        return found


def forward(name: str) -> torch.Tensor:
    program = build(name)
    seed_all(7)
    return program.loss(program.model)


@pytest.mark.parametrize(
    ("model", "op", "n"), [("gpt2", "addmm", 3), ("bert", "addmm", 2), ("resnet", "convolution", 1)]
)
def test_a_graft_is_what_the_changed_program_computes(record: Callable[..., Any], model: str, op: str, n: int) -> None:
    """Dropout after the graft draws the numbers that it drew; BatchNorm's buffers are written again."""
    rank = record(lambda: forward(model))
    slot = f"Aten.{op}.{n}.forward.output.0"
    changed = rank.tensor(slot).tanh() * 1.5  # not linear: a norm that follows would take that back
    grafted = replay(rank, substitute={slot: changed})
    with Change(getattr(A, op).default, n, changed):
        expected = forward(model)
    assert grafted.complete
    loss = next(t for name, t in grafted.tensors.items() if name.startswith("Aten.nll_loss_forward"))
    assert torch.equal(loss, expected)
    assert not torch.equal(loss, rank.tensor("Aten.nll_loss_forward.0.forward.output.0"))
    later = [call for call in rank.calls if call.kind == "aten" and call.phase == "forward"]
    assert 0 < len(grafted.reran) < len(later), "calls before the graft are not run"


def test_a_write_through_an_old_view_carries_the_change(record: Callable[..., Any]) -> None:

    def body() -> None:
        x = torch.arange(12.0)
        buffer = torch.zeros(3, 8)
        half = buffer[:, :4]  # a view made before anything changes
        y = x * 2
        half.copy_(y.view(3, 4))
        buffer[:, 4:].add_(1)
        buffer.sum(dim=1)

    rank = record(body)
    slot = "Aten.mul.0.forward.output.0"
    found = replay(rank, substitute={slot: torch.full((12,), 5.0)}).tensors["Aten.sum.0.forward.output.0"]
    assert found.tolist() == [24.0, 24.0, 24.0]


def test_names_that_are_kept_and_calls_that_cannot_run(record: Callable[..., Any]) -> None:
    weight = nn.Parameter(torch.ones(3, 3))

    def body() -> None:
        h = F.linear(torch.ones(2, 3), weight)
        (torch.relu(h) * 2).sum()

    rank = record(body)
    keep = "Functional.linear.0.forward.output.0"
    grafted = replay(rank, substitute={"Aten.mm.0.forward.output.0": torch.full((2, 3), -1.0)}, keep=[keep])
    assert grafted.tensors[keep].tolist() == [[-1.0] * 3] * 2
    assert grafted.tensors["Aten.sum.0.forward.output.0"].item() == 0.0


def test_what_does_not_fit_is_refused(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.ones(3, requires_grad=True).exp().sum().backward())
    with pytest.raises(ReplayError, match=r"has shape \(3,\); the substitute has \(4,\)"):
        replay(rank, substitute={"Aten.exp.0.forward.output.0": torch.ones(4)})
    with pytest.raises(ReplayError, match="phase backward"):
        replay(rank, substitute={"Aten.mul.0.backward.output.0": torch.ones(3)})
    with pytest.raises(ReplayError, match="leave it out"):
        replay(rank, substitute={}, dtype=torch.float64)


# -- what runs again -----------------------------------------------------------------------------------------------


def test_only_what_reads_something_changed_runs_again(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)
    rank = record(lambda: (x.exp().add(1), x.sin().mul(2)))
    found = graft(rank, {"Aten.exp.0.forward.output.0": torch.zeros(4)})
    assert (found.reran, found.skipped, found.complete) == (("Aten.add.0.forward",), (), True)
    assert {name: t.tolist() for name, t in found.tensors.items()} == {"Aten.add.0.forward.output.0": [1.0] * 4}
    assert graft(rank, {}).reran == ()


def test_an_input_is_replaced_for_its_call_and_those_after_it(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)
    rank = record(lambda: (x.exp(), x.neg(), x.sin()))
    found = graft(rank, {"Aten.neg.0.forward.input.0": torch.zeros(4)})
    assert found.reran == ("Aten.neg.0.forward", "Aten.sin.0.forward"), "exp read it before"


def test_a_substitute_takes_the_recorded_dtype(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)
    rank = record(lambda: x.exp().add(1))
    (made,) = graft(rank, {"Aten.exp.0.forward.output.0": torch.zeros(4, dtype=torch.float64)}).tensors.values()
    assert made.dtype == torch.float32 and made.tolist() == [1.0] * 4


def test_a_change_ends_where_memory_is_written_anew(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)

    def body() -> None:
        made = x.exp()
        made.zero_()
        made.add(1)

    found = graft(record(body), {"Aten.exp.0.forward.output.0": torch.full((4,), 7.0)})
    assert found.tensors["Aten.add.0.forward.output.0"].tolist() == [1.0] * 4


def test_a_part_is_laid_into_the_bytes_around_it(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)

    def body() -> None:
        made = x.mul(2)
        made[:2].neg()
        made.add(1)

    found = graft(record(body), {"Aten.neg.0.forward.input.0": torch.zeros(2)})
    assert found.tensors["Aten.neg.0.forward.output.0"].tolist() == [0.0, 0.0]
    assert found.tensors["Aten.add.0.forward.output.0"].tolist() == [1.0, 1.0, 7.0, 9.0]


def test_a_call_that_cannot_run_is_told_and_its_result_is_as_recorded(record: Callable[..., Any]) -> None:
    x, index = torch.arange(1.0, 5.0), torch.tensor([0, 1])
    rank = record(lambda: x[index.mul(1)].add(1))
    found = graft(rank, {"Aten.mul.0.forward.output.0": torch.tensor([0, 99])})
    assert not found.complete and found.reran == ()
    ((name, why),) = found.skipped
    assert name == "Aten.index.0.forward" and "has values from 0 to 99" in why


def test_memory_that_was_not_written_yet_does_not_run(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)
    rank = record(lambda: torch.empty_like(x.exp()).copy_(x))
    found = graft(rank, {"Aten.exp.0.forward.output.0": torch.zeros(4)})
    assert found.reran == () and found.complete, "it takes the shape, not the elements"


def test_what_has_no_memory_cannot_be_replaced(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.tensor([[0.0, 2.0]]).to_sparse().mul(2))
    with pytest.raises(ReplayError, match="no memory of its own to replace"):
        graft(rank, {"Aten.mul.0.forward.input.0": torch.zeros(1, 2)})


def test_what_is_kept_is_as_recorded_unless_it_changed(record: Callable[..., Any]) -> None:
    x = torch.arange(1.0, 5.0)
    rank = record(lambda: (x.exp().add(1).mul(2), x.neg()))
    keep = ["Aten.neg.0.forward.output.0", "Aten.add.0.forward.output.0"]
    found = graft(rank, {"Aten.exp.0.forward.output.0": torch.zeros(4)}, keep=keep)
    assert found.tensors[keep[0]].tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert found.tensors[keep[1]].tolist() == [1.0] * 4
    assert found.tensors["Aten.mul.0.forward.output.0"].tolist() == [2.0] * 4
