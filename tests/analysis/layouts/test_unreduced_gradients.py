"""Gradients that a rank goes on with as it made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.evidence.findings import Finding, Row
from aten_dump.analysis.evidence.place_of_call import place_of
from aten_dump.analysis.layouts.unreduced_gradients import told_where_reduced
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.part_grids import Placement
from tests.analysis.layouts.test_moved_values import settle
from tests.dump.across_ranks.ranks_of_a_step import wholes
from tests.dump.building import Builder, value

OWN = (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0]))
MEAN = (OWN[0] + OWN[1]) / 2


def reduced(folder: Path, unreduced: tuple[int, ...], *, reduces: bool = True) -> tuple[AssembledRank, Finding]:
    """Record on two ranks: backward makes a gradient, a collective reduces it unseen, an optimizer is given it."""
    ranks = {}
    for rank in range(2):
        b = Builder(folder, 0, rank)
        read, made, given = (
            b.value(torch.ones(2)),
            b.value(OWN[rank].clone()),
            b.value((OWN[rank] if rank in unreduced else MEAN).clone()),
        )
        multiply = b.op("aten", "aten::mul.Tensor", "Aten", "mul", ("self", "other"))
        b.call(multiply, phase="backward", args=[value(read)], outputs=value(made))
        aside = {}
        if reduces:
            aside[b.call(b.op("aten", "c10d::allreduce_", "Distributed", "allreduce_", ("tensors",)), args=[])] = (
                "collective"
            )
        lerp = b.op("aten", "aten::lerp_.Scalar", "Aten", "lerp_", ("self", "end"))
        reader = b.call(lerp, phase="optimizer", args=[value(b.value(torch.zeros(2))), value(given)])
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    whole = AssembledRank(wholes(ranks), aside)
    settle(whole, given, Placement("replica"), (2,))
    call = whole.call(reader)
    row = Row(place_of(call), None, "", "input.1", "different")
    return whole, Finding("rewired", row, "it reads something else", "", (call.id, 0))


@pytest.mark.parametrize(("unreduced", "who"), [((1,), "1"), ((0, 1), "0, 1")])
def test_the_collective_and_the_ranks_are_named(tmp_path: Path, unreduced: tuple[int, ...], who: str) -> None:
    rank, finding = reduced(tmp_path, unreduced)
    told = told_where_reduced(finding, rank)
    assert (told.kind, told.row.place.call) == ("moved", "Distributed.allreduce_.0.forward")
    assert told.text == (
        f"on rank {who}, Aten.lerp_.0.optimizer is given what Aten.mul.0.backward made there, as if this had reduced nothing"
    )
    assert told.order[0] < finding.order[0]


def test_other_findings_stay_as_they_are(tmp_path: Path) -> None:
    rank, finding = reduced(tmp_path / "right", ())
    assert told_where_reduced(finding, rank) is finding
    rank, finding = reduced(tmp_path / "alone", (1,), reduces=False)
    assert told_where_reduced(finding, rank) is finding, "nothing reduces gradients here"
