"""A value of all ranks: geometry, contents, and statistics as far as they follow from those of its parts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from aten_dump.dump.across_ranks.assembled_rank import AssembledRank
from aten_dump.dump.across_ranks.assembled_value import AssembledValue
from aten_dump.dump.across_ranks.part_grids import Grid, Placement
from aten_dump.dump.across_ranks.whole_values import WholeValues
from aten_dump.errors import MissingDataError
from aten_dump.store import records as r
from tests.dump.across_ranks.ranks_of_a_step import ranks_of, wholes
from tests.dump.building import STATISTICS

WHOLE = torch.tensor([[1.0, -2.0], [0.0, 3.0], [5.0, 0.0]])


def statistics(tensor: torch.Tensor) -> list[float]:
    x = tensor.double()
    signs = [int((x == 0).sum()), int((x < 0).sum()), int((x > 0).sum())]
    return [
        x.numel(),
        x.min().item(),
        x.max().item(),
        x.mean().item(),
        x.norm().item(),
        x.std().item(),
        0,
        0,
        0,
        *signs,
    ]


def value_of(whole: WholeValues, id: int = 1) -> AssembledValue:
    found = AssembledRank(whole, {}).value_by_id(id)
    assert isinstance(found, AssembledValue)
    return found


def with_statistics(whole: WholeValues) -> WholeValues:
    for rank in whole.ranks.values():
        rows = [r.Statistics(r.STATISTICS, 1, statistics(rank.value_by_id(1).tensor()))]
        rank.__dict__["tables"] = rank.source.changed_tables("here", rows, [r.STATISTICS])
    return whole


@pytest.fixture
def shards(tmp_path: Path) -> WholeValues:
    """Uneven: two rows and one."""
    return with_statistics(wholes(ranks_of(tmp_path, list(WHOLE.split([2, 1])), "Shard(dim=0)", (3, 2))))


def test_geometry_and_contents(shards: WholeValues) -> None:
    value = value_of(shards)
    assert (tuple(value.shape), value.stride, value.has_data) == ((3, 2), (2, 1), True)
    assert torch.equal(value.tensor(), WHOLE)
    assert (value.undefined, value.unsettled, value.composed, value.absence) == (False, False, True, "")
    assert value.data is None and value.hash is None


def test_statistics_of_shards_together(shards: WholeValues) -> None:
    stats = value_of(shards).stats
    assert stats is not None
    expected = dict(zip(STATISTICS, statistics(WHOLE), strict=True))
    assert {name: stats[name] for name in stats} == pytest.approx({n: v for n, v in expected.items() if n != "std"})
    assert "std" not in stats, "it does not follow"


def test_complex_or_unknown_statistics_are_left_out(shards: WholeValues) -> None:
    rank = shards.ranks[1]
    numbers: list[object] = [*statistics(rank.value_by_id(1).tensor())]
    numbers[1], numbers[3] = None, [1.0, 2.0]
    rank.__dict__["tables"] = rank.source.changed_tables(
        "here", [r.Statistics(r.STATISTICS, 1, numbers)], [r.STATISTICS]
    )
    stats = value_of(shards).stats
    assert stats is not None and "min" not in stats and "mean" not in stats and stats["max"] == 5


def test_a_norm_whose_square_is_beyond_float64_is_no_error(shards: WholeValues) -> None:
    rank = shards.ranks[1]
    numbers = statistics(rank.value_by_id(1).tensor())
    numbers[4] = 1e200
    rank.__dict__["tables"] = rank.source.changed_tables(
        "here", [r.Statistics(r.STATISTICS, 1, numbers)], [r.STATISTICS]
    )
    stats = value_of(shards).stats
    assert stats is not None and stats["l2norm"] == float("inf")


def test_an_empty_shard_has_no_part_in_them(tmp_path: Path) -> None:
    whole = wholes(ranks_of(tmp_path, [WHOLE, WHOLE[:0]], "Shard(dim=0)", (3, 2)))
    for rank, numbers in ((0, statistics(WHOLE)), (1, [0, *[None] * 11])):
        dump = whole.ranks[rank]
        dump.__dict__["tables"] = dump.source.changed_tables(
            "x", [r.Statistics(r.STATISTICS, 1, numbers)], [r.STATISTICS]
        )
    stats = value_of(whole).stats
    assert stats is not None and (stats["min"], stats["count"]) == (-2, 6)


def test_statistics_of_replicas_are_those_of_one(tmp_path: Path) -> None:
    whole = with_statistics(wholes(ranks_of(tmp_path, [WHOLE, WHOLE], "Replicate()", (3, 2))))
    stats = value_of(whole).stats
    assert stats is not None and stats["std"] == pytest.approx(WHOLE.std().item())


@pytest.mark.parametrize("placement", ["Partial(sum)", "Partial(max)"])
def test_no_statistics_follow_from_parts_of_a_sum(tmp_path: Path, placement: str) -> None:
    whole = with_statistics(wholes(ranks_of(tmp_path, [WHOLE, WHOLE], placement, (3, 2))))
    assert value_of(whole).stats is None
    assert value_of(whole).has_data


def test_a_sum_of_one_part_has_that_parts_statistics(tmp_path: Path) -> None:
    value = value_of(with_statistics(wholes(ranks_of(tmp_path, [WHOLE, WHOLE], "Replicate()", (3, 2)))))
    value.assembly.grid = Grid((1, 2), (0, 1), (Placement("sum"), Placement("replica")))
    assert value.stats is not None and value.stats["max"] == 5


def test_an_empty_shard_needs_no_bytes(tmp_path: Path) -> None:
    for lost, has_data in ((1, True), (0, False)):
        ranks = ranks_of(tmp_path / str(lost), [WHOLE, WHOLE[:0]], "Shard(dim=0)", (3, 2), [lost])
        assert value_of(wholes(ranks)).has_data == has_data


def test_none_without_those_of_every_part(tmp_path: Path) -> None:
    whole = wholes(ranks_of(tmp_path, list(WHOLE.split([2, 1])), "Shard(dim=0)", (3, 2)))
    assert value_of(whole).stats is None


def test_an_open_or_scaled_whole_has_no_statistics(tmp_path: Path) -> None:
    whole = with_statistics(wholes(ranks_of(tmp_path, list(WHOLE.split([2, 1])), None, ())))
    value = value_of(whole)
    assert (value.stats, value.has_data, value.unsettled) == (None, False, True)
    assert value.absence == "is in parts: how they fit together was not recorded"
    value.assembly.across(Placement("shard", 0), (3, 2), 0.5)
    assert value.stats is None and value.has_data and not value.unsettled
    value.assembly.across(Placement("shard", 0), (3, 2))
    assert value.stats is not None


def test_a_whole_that_is_settled_anew_is_read_anew(tmp_path: Path) -> None:
    value = value_of(wholes(ranks_of(tmp_path, list(WHOLE.split([2, 1])), None, ())))
    value.assembly.across(Placement("shard", 0), (3, 2), 0.5)
    half = value.shared_tensor()
    value.assembly.across(Placement("shard", 0), (3, 2))
    assert torch.equal(value.shared_tensor(), 2 * half)


def test_given_up_it_says_why(tmp_path: Path) -> None:
    value = value_of(wholes(ranks_of(tmp_path, list(WHOLE.split([2, 1])), "Weird(3)", (3, 2))))
    assert value.absence.startswith("is in parts: its placement is Weird(3)")
    with pytest.raises(MissingDataError):
        value.tensor()


def test_undefined_on_one_rank_is_undefined(shards: WholeValues) -> None:
    rank = shards.ranks[1]
    records = [record._replace(flags=record.flags | r.UNDEFINED) for record in rank.tables.values.records()]
    rank.__dict__["tables"] = rank.source.changed_tables("here", records, [r.VALUE])
    assert value_of(shards).undefined


def test_of_one_rank_alone_it_is_that_of_the_rank(tmp_path: Path) -> None:
    whole = wholes(ranks_of(tmp_path, [WHOLE.t()], None, ()))
    value = value_of(whole)
    assert (value.composed, value.has_data, value.data is not None) == (False, True, True)
    assert value.stride == value.record.stride or list(value.stride) == list(value.record.stride)
    assert torch.equal(value.tensor(), WHOLE.t())
    assert math.prod(value.shape) == 6
