"""What FSDP2's own ops do: they put shards next to each other for a collective, and take apart what it brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from .fused_op import References


def all_gather_copy_in(
    shards: list[Tensor], gathered: Tensor, sizes: Sequence[int], numel: int, rank: int
) -> tuple[Tensor, Tensor]:
    """Copy a rank's shards to its place in the memory that is gathered."""
    own = gathered.narrow(0, numel * rank, numel)
    for place, shard in zip(own.split(list(sizes)), shards, strict=True):
        place.copy_(shard)
    return own, gathered


def split_with_sizes_copy(gathered: Tensor, sizes: Sequence[int], dim: int = 0, *, out: list[Tensor]) -> None:
    """Copy what was gathered to the parameters."""
    for place, part in zip(out, gathered.split(list(sizes), dim), strict=True):
        place.copy_(part)


def chunk_cat(tensors: list[Tensor], dim: int, num_chunks: int, *, out: Tensor) -> None:
    """Copy gradients to the memory that is reduced, each padded to equal chunks."""
    out.copy_(torch.cat([_in_chunks(tensor, dim, num_chunks) for tensor in tensors], dim + 1))


def _in_chunks(tensor: Tensor, dim: int, num_chunks: int) -> Tensor:
    """Return a tensor, padded with zeros to equal chunks along a dimension, with all of a chunk in the next one."""
    sizes = list(tensor.shape)
    sizes[dim] = -sizes[dim] % num_chunks
    return torch.cat([tensor, tensor.new_zeros(sizes)], dim).reshape(*sizes[:dim], num_chunks, -1)


REFERENCES: Final = References(
    {
        "fsdp::all_gather_copy_in": all_gather_copy_in,
        "fsdp::split_with_sizes_copy": split_with_sizes_copy,
        "fsdp::chunk_cat": chunk_cat,
    },
    (
        "fsdp::all_gather_copy_in(Tensor[] all_gather_inputs, Tensor all_gather_output, SymInt[] inp_split_sizes, "
        "SymInt all_gather_input_numel, SymInt rank) -> (Tensor, Tensor)",
        "fsdp::split_with_sizes_copy(Tensor all_gather_output, SymInt[] all_gather_input_split_sizes, int dim=0, *, "
        "Tensor(a!)[] out) -> ()",
        "fsdp::chunk_cat(Tensor[] tensors, int dim, int num_chunks, *, Tensor(a!) out) -> ()",
    ),
)
