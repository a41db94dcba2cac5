"""What is said of a tensor that was not the same after it was moved."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump import open_dump
from aten_dump.analysis.layouts.moved_findings import moved_finding
from aten_dump.analysis.layouts.rank_replays import RankReplays
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.part_grids import Placement
from tests.analysis.layouts.test_moved_values import WHOLE, moved, settle
from tests.dump.across_ranks.ranks_of_a_step import wholes
from tests.dump.building import Builder, value


def gathered(folder: Path, *, wrong_gather: bool = False, wrong_negation: bool = False) -> AssembledRank:
    """Record on two ranks: exp makes a part, a collective gathers it, two negations of the layout's hand it to relu."""
    ranks = {}
    for rank in range(2):
        b = Builder(folder, 0, rank)
        made, brought = b.value(WHOLE.chunk(2)[rank].clone()), b.value(WHOLE * (1.5 if wrong_gather else 1.0))
        turned, whole = -WHOLE * (1.5 if wrong_gather else 1.0), WHOLE * (1.5 if wrong_gather else 1.0)
        if wrong_negation and rank == 1:
            turned, whole = turned.index_fill(0, torch.tensor(3), 0.0), whole.index_fill(0, torch.tensor(3), 0.0)
        b.call(
            b.op("aten", "aten::exp", "Aten", "exp", ("self",)),
            args=[value(b.value(WHOLE[:4].log()))],
            outputs=value(made),
        )
        gather = b.op("aten", "c10d::all_gather_", "Distributed", "gather", ("input",))
        negate = b.op("aten", "aten::neg", "Aten", "neg", ("self",))
        middle, last = b.value(turned.clone()), b.value(whole.clone())
        aside = [
            b.call(gather, args=[value(made)], outputs=value(brought)),
            b.call(negate, n=0, args=[value(brought)], outputs=value(middle)),
            b.call(negate, n=1, args=[value(middle)], outputs=value(last)),
        ]
        b.call(
            b.op("aten", "aten::relu", "Aten", "relu", ("self",)),
            args=[value(last)],
            outputs=value(b.value(WHOLE.clone())),
        )
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    found = AssembledRank(wholes(ranks), dict.fromkeys(aside, "collective"))
    settle(found, made, Placement("shard", 0), (8,))
    settle(found, last, Placement("replica"), (8,))
    found.value_by_id(last).assembly.variant = 1
    return found


def test_the_collective_is_named_where_all_ops_on_the_way_are_right(tmp_path: Path) -> None:
    rank = gathered(tmp_path, wrong_gather=True)
    (fault,) = moved(rank).faults
    finding = moved_finding(rank, fault, RankReplays(), is_baseline=False)
    assert (finding.kind, finding.row.place.call) == ("moved", "Distributed.gather.0.forward")
    assert finding.text.startswith(
        "what it made of Aten.exp.0.forward output.0 on the way to Aten.relu.0.forward is not"
    )
    finding = moved_finding(rank, fault, RankReplays(), is_baseline=True)
    assert finding.row.target is None and finding.text.startswith("in the baseline, what it made of")


def test_an_op_that_a_rank_computed_wrong_is_named(tmp_path: Path) -> None:
    rank = gathered(tmp_path, wrong_negation=True)
    (fault,) = moved(rank).faults
    finding = moved_finding(rank, fault, RankReplays(), is_baseline=False)
    assert (finding.kind, finding.row.place.call) == ("op", "Aten.neg.0.forward")
    assert "rank 1 computed it wrong" in finding.text and finding.text.endswith("rank 0 right")
