"""All ranks of a step as one recording."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump.dump import RankDump
from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.whole_values import WholeValues
from tests.dump.across_ranks.ranks_of_a_step import ranks_of, wholes
from tests.dump.building import Builder, value

WHOLE = torch.arange(12.0).view(4, 3)


@pytest.fixture
def whole(tmp_path: Path) -> WholeValues:
    return wholes(ranks_of(tmp_path, list(WHOLE.chunk(2)), "Shard(dim=0)", (4, 3)), [3])


def test_it_reads_like_one_rank(whole: WholeValues) -> None:
    rank = AssembledRank(whole, {})
    assert isinstance(rank, RankDump)
    assert (list(rank.ranks), rank.missing_ranks, rank.step) == ([0, 1], [3], 0)
    assert rank.where.endswith("(step 0, ranks 0, 1 together)")
    assert [call.name for call in rank.calls] == ["Aten.exp.0.forward"]
    assert torch.equal(rank.tensor("Aten.exp.0.forward.input.0"), WHOLE)
    assert rank.value("Aten.exp.0.forward.output.0").id == 1, "a DTensor goes under the id of its bytes"


def test_calls_of_the_layout_are_left_out(whole: WholeValues) -> None:
    assert len(AssembledRank(whole, {1: "collective"}).calls) == 0


def test_values_go_under_the_ids_of_others_that_hold_the_same(whole: WholeValues) -> None:
    rank = AssembledRank(whole, {})
    renamed = rank.renamed({1: 2})
    assert [v.id for _, v in renamed.calls[0].input_values()] == [2]
    assert [v.id for _, v in rank.calls[0].input_values()] == [1]
    assert renamed.aside is rank.aside and renamed.whole is rank.whole


def test_every_tree_of_a_call_is_renamed(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    x, y, z, w = (value(builder.value(torch.zeros(2))) for _ in range(4))
    op = builder.op("aten", "aten::add_", "Aten", "add_", ("self", "other"))
    builder.call(op, args=[[1, x, 5]], kwargs={"other": y, "alpha": 2}, outputs=z, written=["self", w])
    builder.call(op, args=[1])
    builder.finish()
    from aten_dump.dump import open_dump

    lead = open_dump(tmp_path).rank(0, 0)
    rank = AssembledRank(WholeValues({0: lead}, {}, []), {}, {1: 11, 2: 12, 3: 13, 4: 14})
    call, plain = (one.record for one in rank.calls)
    assert call.args == ((1, (0, 11), 5),) and call.kwargs == {"other": (0, 12), "alpha": 2}
    assert call.outputs == (0, 13) and call.written == ("self", (0, 14))
    assert plain.args == (1,) and plain.kwargs is None and plain.written is None


def test_it_is_equal_to_itself_only(whole: WholeValues) -> None:
    rank = AssembledRank(whole, {})
    assert rank == rank and rank != AssembledRank(whole, {}) and rank != whole.lead
    assert len({rank, rank, AssembledRank(whole, {})}) == 2
