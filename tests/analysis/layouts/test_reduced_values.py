"""What an all-reduce was given and made, without a counterpart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.layouts.part_arrangement import Settler
from aten_dump.analysis.layouts.reduced_values import settle_reduced
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.assembled_value import AssembledValue
from tests.dump.across_ranks.ranks_of_a_step import wholes
from tests.dump.building import Builder, value

WHOLE = torch.arange(1.0, 9.0)


def reduced(folder: Path, op: str, made: list[torch.Tensor]) -> list[AssembledValue]:
    """Settle what two ranks hold: a term, a copy of it in another shape, which a collective is given, and its result."""
    ranks = {}
    for rank in range(2):
        b = Builder(folder, 0, rank)
        term, copy = b.value(WHOLE * (0.25, 0.75)[rank]), b.value((WHOLE * (0.25, 0.75)[rank]).view(2, 4).clone())
        total = b.value(made[rank].view(2, 4))
        exp = b.op("aten", "aten::exp", "Aten", "exp", ("self",))
        b.call(exp, args=[value(b.value(torch.ones(8)))], outputs=value(term))
        b.call(b.op("aten", "aten::clone", "Aten", "clone", ("self",)), args=[value(term)], outputs=value(copy))
        last = b.call(b.op("aten", op, "Distributed", "reduce", ("input",)), args=[value(copy)], outputs=value(total))
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    found = AssembledRank(wholes(ranks), {last: "collective"})
    settle_reduced(found, Settler())
    values = [found.value_by_id(number) for number in (term, copy, total)]
    assert all(isinstance(one, AssembledValue) for one in values)
    return values  # type: ignore[return-value]


@pytest.mark.parametrize("op", ["c10d::allreduce_", "_c10d_functional::all_reduce"])
def test_terms_and_what_they_were_copied_from_make_up_the_sum(tmp_path: Path, op: str) -> None:
    term, copy, total = reduced(tmp_path, op, [WHOLE, WHOLE.clone()])
    assert total.assembly.shared and torch.equal(total.tensor(), WHOLE.view(2, 4))
    assert torch.equal(copy.tensor(), WHOLE.view(2, 4)) and torch.equal(term.tensor(), WHOLE)
    assert {one.assembly.grid.placements[0].kind for one in (term, copy) if one.assembly.grid} == {"sum"}


def test_what_ranks_do_not_hold_alike_says_nothing(tmp_path: Path) -> None:
    assert all(one.unsettled for one in reduced(tmp_path, "c10d::allreduce_", [WHOLE, WHOLE + 1]))


def test_other_collectives_say_nothing(tmp_path: Path) -> None:
    assert all(one.unsettled for one in reduced(tmp_path, "c10d::broadcast_", [WHOLE, WHOLE.clone()]))


def test_a_sum_of_something_else_settles_no_terms(tmp_path: Path) -> None:
    term, copy, total = reduced(tmp_path, "c10d::allreduce_", [-WHOLE, -WHOLE])
    assert term.unsettled and copy.unsettled and not total.unsettled
