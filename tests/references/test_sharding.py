"""What stands for FSDP2's own ops computes what these do."""

from __future__ import annotations

import pytest
import torch

from aten_dump.analysis.composed_ops import fused_ops
from aten_dump.references import fsdp as sharding

fsdp = pytest.importorskip("torch.distributed.fsdp")
SHARDS = [torch.arange(6.0), torch.arange(3.0) + 10]


def has(name: str) -> bool:
    """Return True if this torch has the op, with the arguments of its newer form."""
    packet = getattr(torch.ops.fsdp, name, None) if hasattr(torch.ops, "fsdp") else None
    if packet is None:
        return False
    names = [argument.name for argument in packet.default._schema.arguments]
    return names == [argument.name for argument in fused_ops()[f"fsdp::{name}"]._schema.arguments]


def test_shards_are_copied_to_their_place() -> None:
    if not has("all_gather_copy_in"):
        pytest.skip("this torch makes the memory itself")
    ours, theirs = torch.zeros(18), torch.zeros(18)
    found = sharding.all_gather_copy_in(SHARDS, ours, [6, 3], 9, 1)
    expected = torch.ops.fsdp.all_gather_copy_in(SHARDS, theirs, [6, 3], 9, 1)
    assert torch.equal(ours, theirs)
    assert torch.equal(found[0], expected[0])


def test_what_was_gathered_is_taken_apart() -> None:
    if not has("split_with_sizes_copy"):
        pytest.skip("this torch has no such op")
    gathered = torch.arange(18.0).view(2, 9)
    ours, theirs = ([torch.zeros(2, 6), torch.zeros(2, 3)] for _ in range(2))
    sharding.split_with_sizes_copy(gathered, [6, 3], 1, out=ours)
    torch.ops.fsdp.split_with_sizes_copy(gathered, [6, 3], 1, out=theirs)
    assert all(map(torch.equal, ours, theirs))


def test_gradients_are_padded_to_equal_chunks() -> None:
    if not has("chunk_cat"):
        pytest.skip("this torch has no such op")
    gradients = [torch.arange(10.0).view(5, 2), torch.arange(5.0)]
    ours, theirs = torch.full((2, 9), 7.0), torch.full((2, 9), 7.0)
    sharding.chunk_cat(gradients, 0, 2, out=ours)
    torch.ops.fsdp.chunk_cat(gradients, 0, 2, out=theirs)
    assert torch.equal(ours, theirs)
