"""A loss whose classes are divided over ranks: its backward is held against two ops of the counterpart's."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump import open_dump
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.judgement import Judgement
from aten_dump.analysis.layouts.fused_loss import is_fused, judge_fused
from aten_dump.dump import Call
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from tests.analysis.by_hand import apart, inputs
from tests.dump.across_ranks.ranks_of_a_step import dtensor, wholes
from tests.dump.building import Builder, value

WRONG = Judgement("different", True)


def call_on_parts(folder: Path, op: str, placement: str) -> Call:
    """Return an op on a DTensor of shape [2, 4] or [4, 2], of which each of two ranks has half."""
    ranks = {}
    for rank in (0, 1):
        b = Builder(folder, 0, rank)
        shape = [2, 4] if placement == "Shard(dim=1)" else [4, 2]
        given = dtensor(b, shape, b.value(torch.ones(2, 2) + rank), placement)
        b.call(b.op("aten", op, "Aten", op.partition("::")[2], ("self",)), args=[value(given)], outputs=value(given))
        b.finish()
        ranks[rank] = open_dump(folder).rank(0, rank)
    return AssembledRank(wholes(ranks), {}).calls[0]


def test_only_divided_classes_make_it_one(tmp_path: Path) -> None:
    loss = call_on_parts(tmp_path / "a", "aten::nll_loss_backward", "Shard(dim=1)")
    assert is_fused(loss)
    assert not is_fused(call_on_parts(tmp_path / "b", "aten::nll_loss_backward", "Shard(dim=0)")), "a divided batch"
    assert not is_fused(call_on_parts(tmp_path / "c", "aten::exp", "Shard(dim=1)"))


def test_the_first_is_let_through_and_the_second_held_against_the_counterpart(tmp_path: Path) -> None:
    first = call_on_parts(tmp_path / "a", "aten::nll_loss_backward", "Shard(dim=1)")
    second = call_on_parts(tmp_path / "b", "aten::_log_softmax_backward_data", "Shard(dim=1)")
    value = second.input_values()[0][1]
    said = judge_fused(first, WRONG, (value, value, apart(0.5)), inputs("within"), 2)
    assert (said.status, said.guilty, said.proven) == ("within", False, False)
    assert not judge_fused(second, WRONG, (value, value, apart(1e-7)), inputs("within"), 2).guilty
    far = judge_fused(second, WRONG, (value, value, apart(0.01)), inputs("within", error=0.5), 2)
    assert (far.status, far.guilty) == ("different", True), "the error of what the first returns excuses nothing"
    nowhere = Closeness("none", reason="parts that come near it in no order")
    for call in (first, second):
        assert judge_fused(call, WRONG, (value, value, nowhere), inputs("within"), 2).status == "unknown"
    right = Judgement("within")
    assert judge_fused(second, right, (value, value, apart(0.01)), inputs(), 2) is right
