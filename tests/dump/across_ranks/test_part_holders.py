"""What holds the bytes of a DTensor, and of a result that was waited for."""

from __future__ import annotations

import torch
from torch import Tensor

from aten_dump.dump import open_dump
from aten_dump.dump.across_ranks.part_grids import Placement
from aten_dump.dump.across_ranks.part_holders import Holders, Spec, spec_of
from aten_dump.store.op_names import WAIT_TENSOR
from aten_dump.store.records import UNDEFINED
from tests.dump.across_ranks.ranks_of_a_step import MESH, dtensor
from tests.dump.building import Builder, value


def test_a_dtensor_a_result_before_its_wait_and_both(builder: Builder) -> None:
    plain, before, after = (builder.value(torch.zeros(2)) for _ in range(3))
    of_plain = dtensor(builder, (4,), plain, "Shard(dim=0)")
    of_before = dtensor(builder, (4,), before, "Shard(dim=0)")
    wait = builder.op("aten", WAIT_TENSOR, "Distributed", "wait_tensor")
    builder.call(wait, args=[value(before)], outputs=value(after))
    rank = open_dump(builder.finish()).rank(0, 0)
    holders = Holders(rank)
    found = {number: holders.of(rank.value_by_id(number)).id for number in (plain, before, after, of_plain, of_before)}
    assert found == {plain: plain, before: after, after: after, of_plain: plain, of_before: after}


def test_a_wait_that_returns_what_it_was_given_is_no_way(builder: Builder) -> None:
    x, y = (builder.value(torch.zeros(2)) for _ in range(2))
    wait = builder.op("aten", WAIT_TENSOR, "Distributed", "wait_tensor")
    builder.call(wait, args=[value(x)], outputs=value(x))
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(x)], outputs=value(y))
    rank = open_dump(builder.finish()).rank(0, 0)
    assert Holders(rank).of(rank.value_by_id(x)).id == x


def test_a_wait_with_a_view_is_one_for_all_views_on_that_memory(builder: Builder) -> None:
    memory, other = torch.arange(6.0).reshape(2, 3), torch.zeros(2, 3)

    def value_of(x: Tensor, version: int) -> int:
        return builder.value(x, version=version, flags=UNDEFINED if version == 1 else 0)

    views = memory, memory[:, :1], memory[:, 1:]
    before = [value_of(x, 1) for x in (*views, memory[:, 2:], other)]
    after = [value_of(x, 2) for x in (*views, other)]
    wait = builder.op("aten", WAIT_TENSOR, "Distributed", "wait_tensor")
    builder.call(wait, args=[value(before[1])], outputs=value(after[1]))
    rank = open_dump(builder.finish()).rank(0, 0)
    found = [Holders(rank).of(rank.value_by_id(number)).id for number in before]
    assert found == [*after[:3], *before[3:]], "a view that nobody saw after it, and other memory, are what they were"


def test_a_circle_of_locals_ends(builder: Builder) -> None:
    first = dtensor(builder, (4,), 2, "Shard(dim=0)")
    second = dtensor(builder, (4,), first, "Shard(dim=0)")
    rank = open_dump(builder.finish()).rank(0, 0)
    assert Holders(rank).of(rank.value_by_id(first)).id in (first, second)


def test_specs() -> None:
    extra = {"mesh": MESH, "placements": ["Shard(dim=1)", "Partial(sum)"]}
    placements = (Placement("shard", 1, text="Shard(dim=1)"), Placement("sum", text="Partial(sum)"))
    assert spec_of(extra) == Spec((2,), (0, 1), placements)
    assert spec_of(None) is None and spec_of({}) is None
    assert spec_of({"mesh": MESH}) is None and spec_of({"placements": []}) is None
