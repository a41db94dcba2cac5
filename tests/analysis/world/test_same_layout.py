"""Did two steps run in the same parallel layout?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.world.same_layout import layouts_differ
from aten_dump.dump.root import Step
from tests.dump.across_ranks.ranks_of_a_step import MESH, dtensor
from tests.dump.building import Builder, value


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., Step]:
    """step(world_size, *DTensors as (shape, placement, mesh)): a step of which the lead was recorded."""
    count = iter(range(100))

    def make(world_size: int, *tensors: tuple[tuple[int, ...], str, dict[str, Any]], made: bool = False) -> Step:
        b = Builder(tmp_path / str(next(count)))
        b.records[0] = b.records[0]._replace(world_size=world_size)
        for shape, placement, mesh in tensors:
            number = dtensor(b, shape, b.value(torch.zeros(2)), placement, mesh)
            if made:
                b.call(b.op("aten", "aten::exp", "Aten", "exp"), outputs=value(number))
        return open_dump(b.finish()).step(0)

    return make


Steps = Callable[..., Step]
SHARD, REPLICA = ((4, 2), "Shard(dim=0)", MESH), ((4, 2), "Replicate()", MESH)


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"), [(1, 1, False), (2, 1, True), (1, 4, True), (2, 4, True), (2, 2, False)]
)
def test_numbers_of_ranks(step: Steps, ours: int, theirs: int, differ: bool) -> None:
    assert layouts_differ(step(ours), step(theirs)) == differ


def test_how_tensors_from_outside_lie(step: Steps) -> None:
    assert not layouts_differ(step(2, SHARD), step(2, SHARD))
    assert not layouts_differ(step(2, SHARD, SHARD), step(2, SHARD)), "how many there are is no layout"
    assert layouts_differ(step(2, SHARD), step(2, REPLICA))
    assert layouts_differ(step(2, SHARD), step(2))
    assert layouts_differ(step(2, SHARD), step(2, ((4, 2), "Shard(dim=0)", {**MESH, "shape": [1, 2]})))
    assert layouts_differ(step(2, SHARD), step(2, ((8, 1), "Shard(dim=0)", MESH)))


def test_what_the_step_made_says_nothing(step: Steps) -> None:
    assert not layouts_differ(step(2, SHARD, made=True), step(2))


def test_one_rank_has_no_layout(step: Steps) -> None:
    assert not layouts_differ(step(1, SHARD), step(1, REPLICA))


def test_a_step_that_nobody_recorded_has_none(step: Steps) -> None:
    some = step(2)
    none = Step(some.dump, 0, {})
    assert not layouts_differ(none, some) and not layouts_differ(some, none)
