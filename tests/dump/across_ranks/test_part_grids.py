"""Parts of tensors are put together as DTensor divided them."""

from __future__ import annotations

import pytest
import torch

from aten_dump.dump.across_ranks.part_grids import Grid, Placement

WHOLE = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)


def chunks(tensor: torch.Tensor, count: int, dim: int) -> list[torch.Tensor]:
    """Divide as Shard does: uneven, the last ones may be empty."""
    found = list(tensor.chunk(count, dim))
    return found + [tensor.narrow(dim, 0, 0)] * (count - len(found))


def joined(shape: tuple[int, ...], texts: list[str], parts: list[torch.Tensor], variant: int = 0) -> torch.Tensor:
    grid = Grid(shape, tuple(range(len(parts))), tuple(map(Placement.parse, texts)))
    return grid.join(lambda rank: parts[rank], variant)


@pytest.mark.parametrize(("count", "dim"), [(2, 0), (3, 1), (6, 1), (4, 0)])
def test_uneven_shards(count: int, dim: int) -> None:
    assert torch.equal(joined((count,), [f"Shard(dim={dim})"], chunks(WHOLE, count, dim)), WHOLE)


def test_two_dimensions_of_a_mesh() -> None:
    parts = [part for row in chunks(WHOLE, 2, 0) for part in chunks(row, 3, 1)]
    assert torch.equal(joined((2, 3), ["Shard(dim=0)", "Shard(dim=1)"], parts), WHOLE)
    parts = [part for row in chunks(WHOLE, 2, 0) for part in chunks(row, 2, 0)]
    assert torch.equal(joined((2, 2), ["Shard(dim=0)", "Shard(dim=0)"], parts), WHOLE)


def test_a_strided_shard_was_divided_last() -> None:
    """FSDP divides what tensor parallelism has divided: mesh (dp, tp), tp first."""
    by_tp = [chunks(part, 2, 0) for part in chunks(WHOLE, 2, 0)]
    parts = [by_tp[tp][dp] for dp in range(2) for tp in range(2)]
    assert torch.equal(joined((2, 2), ["_StridedShard(dim=0, sf=2)", "Shard(dim=0)"], parts), WHOLE)
    assert not torch.equal(joined((2, 2), ["Shard(dim=0)", "Shard(dim=0)"], parts), WHOLE)


@pytest.mark.parametrize(("op", "expected"), [("sum", 6.0), ("avg", 2.0), ("max", 3.0), ("min", 1.0), ("product", 6.0)])
def test_partials(op: str, expected: float) -> None:
    parts = [torch.full((2,), number, dtype=torch.bfloat16) for number in (1.0, 2.0, 3.0)]
    assert joined((3,), [f"Partial({op})"], parts).tolist() == [expected] * 2


def test_replicas_are_variants() -> None:
    parts = [*chunks(WHOLE, 2, 0), *chunks(WHOLE + 1, 2, 0)]
    grid = Grid((2, 2), (0, 1, 2, 3), (Placement.parse("Replicate()"), Placement.parse("Shard(dim=0)")))
    assert grid.variants == 2
    assert torch.equal(grid.join(lambda rank: parts[rank], 1), WHOLE + 1)
    owners = grid.owners(lambda rank: parts[rank].shape, 1)
    assert owners[:4].eq(2).all()
    assert owners[4:].eq(3).all()


def test_folded_blocks() -> None:
    """Heads of a batch of 3, folded into the batch: rank 0 has the first two heads of each sample."""
    whole = torch.arange(3 * 4 * 2).view(3, 4, 2)
    parts = [whole[:, :2].flatten(0, 1), whole[:, 2:].flatten(0, 1)]
    grid = Grid((2,), (0, 1), (Placement("shard", 0, 3),))
    assert torch.equal(grid.join(lambda rank: parts[rank]), whole.flatten(0, 1))


def test_placements_say_what_they_are() -> None:
    assert str(Placement.parse("Shard(dim=1)")) == "Shard(dim=1)"
    assert str(Placement("shard", 1)) == "shards along dimension 1"
    assert str(Placement("shard", 0, 3)) == "shards along dimension 0, in each of 3 blocks"
    assert [str(Placement(kind)) for kind in ("replica", "avg", "max")] == ["replicas", "mean", "max"]
