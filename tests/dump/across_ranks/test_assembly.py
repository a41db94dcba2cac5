"""One tensor as all ranks hold it: settled, given up, put together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump.dump import Value, open_dump
from aten_dump.dump.across_ranks.assembly import Assembly
from aten_dump.dump.across_ranks.part_grids import Grid, Placement
from aten_dump.errors import MissingDataError
from tests.dump.building import Builder

WHOLE = torch.arange(12.0).view(4, 3)
OPEN = Placement("other")


def parts_of(folder: Path, tensors: list[torch.Tensor]) -> dict[int, Value]:
    """Record one tensor on each rank."""
    found = {}
    for rank, tensor in enumerate(tensors):
        builder = Builder(folder, 0, rank)
        number = builder.value(tensor.contiguous())
        found[rank] = open_dump(builder.finish()).rank(0, rank).value_by_id(number)
    return found


def grid(*placements: Placement, shape: tuple[int, ...] = (2,)) -> Grid:
    return Grid(shape, (0, 1), placements)


def test_it_is_open_until_somebody_says_how_the_ranks_share_it(tmp_path: Path) -> None:
    found = Assembly(parts_of(tmp_path, list(WHOLE.chunk(2))), (2, 3), grid(OPEN))
    assert found.open
    with pytest.raises(MissingDataError, match="it is not known how the parts of the ranks fit together"):
        found.tensor()
    found.across(Placement("shard", 0), (4, 3))
    assert not found.open and found.shape == (4, 3)
    assert torch.equal(found.tensor(), WHOLE)


def test_it_can_be_scaled(tmp_path: Path) -> None:
    found = Assembly(parts_of(tmp_path, list(WHOLE.chunk(2))), (2, 3), grid(OPEN))
    found.across(Placement("shard", 0), (4, 3), 0.5)
    assert torch.equal(found.tensor(), WHOLE / 2)


def test_settling_the_first_dimension_leaves_the_others(tmp_path: Path) -> None:
    found = Assembly(parts_of(tmp_path, list(WHOLE.chunk(2))), (4, 3), grid(OPEN, Placement("shard", 0), shape=(1, 2)))
    found.across(Placement("replica"), (4, 3))
    assert torch.equal(found.tensor(), WHOLE)


def test_a_replica_is_read_as_the_variant_says(tmp_path: Path) -> None:
    found = Assembly(parts_of(tmp_path, [WHOLE, WHOLE + 1]), (4, 3), grid(OPEN), variant=1)
    found.across(Placement("replica"), (4, 3))
    assert torch.equal(found.tensor(), WHOLE + 1)
    assert torch.equal(found.tensor(0), WHOLE)


def test_given_up_it_says_why(tmp_path: Path) -> None:
    found = Assembly(parts_of(tmp_path, [WHOLE, WHOLE]), (4, 3), grid(OPEN))
    found.give_up("nobody knows", (8, 3))
    assert (found.open, found.grid, found.shape, found.settled) == (False, None, (8, 3), True)
    with pytest.raises(MissingDataError, match="nobody knows"):
        found.tensor()


def test_a_part_that_is_missing_and_parts_that_do_not_fit(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, list(WHOLE.chunk(2)))
    found = Assembly(parts, (4, 3), grid(OPEN))
    found.across(Placement("shard", 1), (4, 3))
    with pytest.raises(MissingDataError, match=r"the parts make up \[2, 6\], the whole tensor is \[4, 3\]"):
        found.tensor()
    del parts[1]
    with pytest.raises(MissingDataError, match="the part of rank 1 is missing"):
        found.tensor()
