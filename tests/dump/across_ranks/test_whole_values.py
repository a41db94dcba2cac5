"""Which values of which ranks are one tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump.dump import open_dump
from aten_dump.dump.across_ranks.part_grids import Placement
from aten_dump.dump.across_ranks.whole_values import Correspondence, WholeValues
from aten_dump.errors import MissingDataError
from aten_dump.store import records as r
from tests.dump.across_ranks.ranks_of_a_step import MESH, dtensor, ranks_of, wholes
from tests.dump.building import Builder, value

WHOLE = torch.arange(12.0).view(4, 3)


def test_a_dtensor_goes_under_the_id_of_its_local_tensor(tmp_path: Path) -> None:
    whole = wholes(ranks_of(tmp_path, list(WHOLE.chunk(2)), "Shard(dim=0)", (4, 3)))
    assert whole.ids == {1: 1, 2: 1}
    record = whole.record(1)
    assert (record.id, tuple(record.shape), record.extra) == (1, (4, 3), None)
    assert record.storage != 0 and not record.flags & r.OPAQUE
    found = whole.assembly(1)
    assert found.settled and torch.equal(found.tensor(), WHOLE)
    assert whole.assembly(1) is found and whole.settled == [found]


def test_a_flag_of_the_dtensor_is_kept(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, list(WHOLE.chunk(2)), "Shard(dim=0)", (4, 3))
    lead = ranks[0].tables
    flagged = [record._replace(flags=record.flags | r.REQUIRES_GRAD) for record in lead.values.records()]
    ranks[0].__dict__["tables"] = ranks[0].source.changed_tables("here", flagged, [r.VALUE])
    assert wholes(ranks).record(1).flags & r.REQUIRES_GRAD


def test_a_plain_tensor_is_open_until_somebody_knows_the_whole(tmp_path: Path) -> None:
    whole = wholes(ranks_of(tmp_path, list(WHOLE.chunk(2)), None, ()))
    found = whole.assembly(1)
    assert found.open and found.groups == ((0,), (1,)) and found.group_shapes == ((2, 3), (2, 3))
    assert whole.settled == []
    found.across(Placement("shard", 0), (4, 3))
    assert torch.equal(found.tensor(), WHOLE)


@pytest.mark.parametrize("missing", [[], [1]])
def test_of_one_rank_alone_all_is_whole_unless_another_is_missing(tmp_path: Path, missing: list[int]) -> None:
    found = wholes(ranks_of(tmp_path, [WHOLE], None, ()), missing).assembly(1)
    assert (found.shared, found.settled) == (not missing, not missing)


def test_ranks_that_recorded_different_placements(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, list(WHOLE.chunk(2)), "Shard(dim=0)", (4, 3))
    other = ranks_of(tmp_path / "other", list(WHOLE.chunk(2)), "Replicate()", (4, 3))
    with pytest.raises(MissingDataError, match="the ranks recorded different placements"):
        wholes({0: ranks[0], 1: other[1]}).assembly(1).tensor()


def test_a_placement_that_nobody_can_put_together(tmp_path: Path) -> None:
    found = wholes(ranks_of(tmp_path, list(WHOLE.chunk(2)), "Weird(3)", (4, 3))).assembly(1)
    with pytest.raises(MissingDataError, match=r"its placement is Weird\(3\), which cannot be put together"):
        found.tensor()


def test_a_rank_that_is_missing(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, list(WHOLE.chunk(2)), "Shard(dim=0)", (4, 3))
    with pytest.raises(MissingDataError, match="the part of rank 1 is missing"):
        wholes({0: ranks[0]}, [1]).assembly(1).tensor()
    replicas = ranks_of(tmp_path / "replicas", [WHOLE, WHOLE], "Replicate()", (4, 3))
    assert torch.equal(wholes({0: replicas[0]}, [1]).assembly(1).tensor(), WHOLE), "one replica is enough"


def test_two_dtensors_of_one_local_tensor_in_unlike_layouts(tmp_path: Path) -> None:
    """The first keeps the id of the bytes; the other goes under its own."""
    for rank in range(2):
        builder = Builder(tmp_path, 0, rank)
        local = builder.value(WHOLE.chunk(2)[rank].contiguous())
        for placement, shape in (("Shard(dim=0)", (4, 3)), ("Shard(dim=1)", (2, 6)), ("Shard(dim=0)", (4, 3))):
            dtensor(builder, shape, local, placement)
        builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(local)])
        builder.finish()
    whole = wholes({rank: open_dump(tmp_path).rank(0, rank) for rank in range(2)})
    assert whole.ids == {1: 1, 2: 1, 3: 3, 4: 1}
    assert torch.equal(whole.assembly(1).tensor(), WHOLE)
    assert torch.equal(whole.assembly(3).tensor(), torch.cat(WHOLE.chunk(2), 1))


def test_groups_of_ranks_that_each_hold_a_whole(tmp_path: Path) -> None:
    """Data parallelism around tensor parallelism: meshes of two ranks each."""
    found = {}
    for rank in range(4):
        builder = Builder(tmp_path, 0, rank)
        local = builder.value((WHOLE + rank // 2).chunk(2)[rank % 2].contiguous())
        ranks = [0, 1] if rank < 2 else [2, 3]
        dtensor(builder, (4, 3), local, "Shard(dim=0)", {**MESH, "ranks": ranks})
        builder.finish()
        found[rank] = open_dump(tmp_path).rank(0, rank)
    assembly = wholes(found).assembly(1)
    assert assembly.open and assembly.groups == ((0, 1), (2, 3)) and assembly.group_shapes == ((4, 3), (4, 3))
    assembly.across(Placement("replica"), (4, 3))
    assert torch.equal(assembly.tensor(1), WHOLE + 1) and torch.equal(assembly.tensor(0), WHOLE)


def test_what_has_no_counterpart_is_of_the_ranks_that_have_it(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, [WHOLE, WHOLE], None, ())
    whole = WholeValues(ranks, {1: Correspondence({}, {})}, [])
    assert list(whole.assembly(1).parts) == [0]
    assert whole.local_calls(1) == {0: 1}
    assert wholes(ranks).local_calls(1) == {0: 1, 1: 1}
