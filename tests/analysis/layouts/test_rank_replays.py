"""Replays of each rank's own ops on its own parts: the worst rank counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.layouts.rank_replays import RankReplays, id_of, leaves_of
from aten_dump.analysis.rerun.rounding_error import SUSPECT
from aten_dump.dump import RankDump
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from tests.dump.across_ranks.ranks_of_a_step import dtensor, wholes
from tests.dump.building import Builder, value

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def exp_on_ranks(folder: Path, *factors: float) -> AssembledRank:
    """Return a step in which each rank recorded exp of its part, times a factor."""
    ranks = {}
    for rank, factor in enumerate(factors):
        b = Builder(folder, 0, rank)
        given = b.value(X + rank)
        made = b.value((X + rank).exp() * factor)
        b.call(b.op("aten", "aten::exp", "Aten", "exp", ("self",)), args=[value(given)], outputs=value(made))
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    return AssembledRank(wholes(ranks), {})


def test_the_worst_rank_counts(tmp_path: Path) -> None:
    rank = exp_on_ranks(tmp_path, 1.0, 1.02, 1.01)
    call, replays = rank.calls[0], RankReplays()
    found = replays.errors(call)
    assert isinstance(found, dict)
    assert found["output.0"].error == pytest.approx(0.02, rel=1e-4)
    own = replays.own[id_of(call)]
    assert sorted(own.ratios) == sorted(own.by_rank) == [0, 1, 2]
    assert own.ratios[0] <= 1 < own.ratios[2] < own.ratios[1]
    assert own.ratios[1] == found["output.0"].ratio / SUSPECT


def test_right_on_every_rank_is_right(tmp_path: Path) -> None:
    found = RankReplays().errors(exp_on_ranks(tmp_path, 1.0, 1.0).calls[0])
    assert isinstance(found, dict) and found["output.0"].ratio <= SUSPECT


def test_a_rank_alone_is_replayed_as_it_is(tmp_path: Path) -> None:
    rank = exp_on_ranks(tmp_path, 1.02, 1.0)
    replays = RankReplays()
    found = replays.errors(rank.lead.calls[0])
    assert isinstance(found, dict) and found["output.0"].ratio > SUSPECT
    assert replays.own == {}
    assert RankReplays(enabled=False).local_errors(rank.calls[0], rank.calls[0]) == "replay is switched off"


def test_why_there_is_none_is_that_of_the_rank(tmp_path: Path) -> None:
    ranks = {}
    for number in range(2):
        b = Builder(tmp_path, 0, number)
        op = b.op("aten", "aten::no_such_op" if number else "aten::exp", "Aten", "exp", ("self",))
        b.call(op, args=[value(b.value(X))], outputs=value(b.value(X.exp())))
        b.finish()
        ranks[number] = open_dump(tmp_path).rank(0, number)
    why = RankReplays().errors(AssembledRank(wholes(ranks), {}).calls[0])
    assert isinstance(why, str) and "no_such_op" in why


# -- an op on DTensors ---------------------------------------------------------------------------------------------


def nested(folder: Path, factor: float = 1.0, collective: bool = False) -> RankDump:
    """Record an op on DTensors, which one rank did by the same op on local tensors, and a helper before it."""
    b = Builder(folder)
    x, mask, result = b.value(X), b.value(X > 0), b.value(X.exp() * factor)
    whole = [dtensor(b, (4,), number, "Replicate()", {"shape": [1], "ranks": [0]}) for number in (x, result)]
    op = b.op("aten", "aten::exp", "Aten", "exp", ("self",))
    if collective:
        b.call(b.op("aten", "c10d::barrier", "Distributed", "barrier"), id=4, parent=1, outputs=value(result))
    b.call(
        b.op("aten", "aten::gt.Scalar", "Aten", "gt", ("self", "other")),
        id=2,
        parent=1,
        args=[value(x), 0],
        outputs=value(mask),
    )
    b.call(op, id=3, parent=1, n=1, args=[value(x)], outputs=value(result))
    b.call(op, id=1, args=[value(whole[0])], outputs=value(whole[1]))
    return open_dump(b.finish()).rank(0, 0)


def test_the_ops_inside_did_the_work(tmp_path: Path) -> None:
    rank = nested(tmp_path)
    assert [call.op for call in leaves_of(rank.call(1))] == ["aten::gt.Scalar", "aten::exp"]
    assert leaves_of(rank.call(3)) == [rank.call(3)]


@pytest.mark.parametrize("collective", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_their_errors_are_those_of_the_op(tmp_path: Path, factor: float, collective: bool) -> None:
    rank = AssembledRank(
        wholes({0: nested(tmp_path, factor, collective)}), {2: "local op", 3: "local op", 4: "local op"}
    )
    found = RankReplays().errors(rank.call(1))
    assert isinstance(found, dict) and list(found) == ["output.0"]
    assert (found["output.0"].ratio > SUSPECT) == (factor != 1.0)


def test_a_helper_that_is_wrong_makes_all_results_wrong(tmp_path: Path) -> None:
    b = Builder(tmp_path)
    x, other, result = b.value(X), b.value(X * 9), b.value(X.exp())
    whole = [dtensor(b, (4,), number, "Replicate()", {"shape": [1], "ranks": [0]}) for number in (x, result)]
    exp, neg = (b.op("aten", f"aten::{name}", "Aten", name, ("self",)) for name in ("exp", "neg"))
    b.call(neg, id=2, parent=1, args=[value(x)], outputs=value(other))
    b.call(exp, id=3, parent=1, n=1, args=[value(x)], outputs=value(result))
    b.call(exp, id=1, args=[value(whole[0])], outputs=value(whole[1]))
    rank = AssembledRank(wholes({0: open_dump(b.finish()).rank(0, 0)}), {2: "local op", 3: "local op"})
    found = RankReplays().errors(rank.call(1))
    assert isinstance(found, dict) and found["output.0"].ratio > SUSPECT


def test_only_collectives_inside_leave_nothing_to_run(tmp_path: Path) -> None:
    b = Builder(tmp_path)
    x = b.value(X)
    whole = dtensor(b, (4,), x, "Replicate()", {"shape": [1], "ranks": [0]})
    b.call(b.op("aten", "c10d::allreduce_", "Distributed", "allreduce_"), id=2, parent=1, outputs=value(x))
    b.call(b.op("aten", "aten::sum", "Aten", "sum"), id=1, args=[value(whole)], outputs=value(whole))
    rank = AssembledRank(wholes({0: open_dump(b.finish()).rank(0, 0)}), {2: "collective"})
    assert RankReplays().errors(rank.call(1)) == "no rank has an op of it that could be run again"


def test_calls_of_all_dumps_are_told_apart(tmp_path: Path) -> None:
    ranks = [nested(tmp_path / name) for name in ("a", "b")]
    assert len({id_of(rank.call(number)) for rank in ranks for number in (1, 3)}) == 4
