"""Is what ranks made together what the op makes of what they hold together?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.flow.cones import Cone
from aten_dump.analysis.layouts.whole_op import is_made_of_the_whole, off_together
from aten_dump.analysis.rerun.run_region import Piece
from aten_dump.dump import Call
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.assembled_value import AssembledValue
from aten_dump.dump.across_ranks.part_grids import Placement
from tests.analysis.by_hand import one_call
from tests.dump.across_ranks.ranks_of_a_step import wholes
from tests.dump.building import Builder, value

X, Y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, -1.0, 2.5, 1.0])
Make = Callable[..., Call]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    count = iter(range(9))

    def call(x: torch.Tensor, result: torch.Tensor, op: str = "aten::add.Tensor") -> Call:
        return one_call(tmp_path / str(next(count)), op, (x, Y), [result])

    return call


def test_one_op_is_run_on_the_other_sides_tensors(make: Make) -> None:
    baseline = make(X, X + Y)
    assert is_made_of_the_whole(make(10 * X, 10 * X + Y), baseline, "output.0"), "however far both are apart"
    assert not is_made_of_the_whole(make(10 * X, 10 * X + Y + 1e-3), baseline, "output.0")
    assert not is_made_of_the_whole(make(X, X + Y), baseline, "output.1"), "there is no such result"
    assert not is_made_of_the_whole(make(X[:3], X[:3]), baseline, "output.0"), "it cannot be run on these"
    assert not is_made_of_the_whole(make(X, X + Y), make(X, X + Y, op="c10d::allreduce_"), "output.0")


def rank_that_adds(folder: Path, biases: int) -> Cone:
    """Return the call of two ranks that adds a bias to a term; of the sum over ranks it should be there once."""
    ranks = {}
    for rank in range(2):
        b = Builder(folder, 0, rank)
        term, bias = b.value(X * (0.25, 0.75)[rank]), b.value(Y)
        made = b.value(X * (0.25, 0.75)[rank] + Y / (3 - biases))
        add = b.op("aten", "aten::add.Tensor", "Aten", "add", ("self", "other"))
        b.call(add, args=[value(term), value(bias)], outputs=value(made))
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    found = AssembledRank(wholes(ranks), {})
    for number, kind in ((term, "sum"), (bias, "replica"), (made, "sum")):
        one = found.value_by_id(number)
        assert isinstance(one, AssembledValue)
        one.assembly.across(Placement(kind), (4,))
    (call,) = found.calls
    given = tuple(v for _, v in call.input_values())
    return Cone((call.outputs,), (Piece(call),), given)


def test_a_bias_that_every_rank_adds_is_there_as_often_as_there_are_ranks(tmp_path: Path) -> None:
    assert off_together(rank_that_adds(tmp_path / "once", biases=1)) is None
    found = off_together(rank_that_adds(tmp_path / "twice", biases=2))
    assert found is not None
    call, slot, error = found
    assert (call.name, slot) == ("Aten.add.0.forward", "output.0")
    assert error == pytest.approx(float(Y.norm() / (X + Y).norm()))


def test_calls_of_one_process_are_not_asked(make: Make) -> None:
    call = make(X, X)
    assert off_together(Cone((call.outputs,), (Piece(call),), tuple(v for _, v in call.input_values()))) is None
