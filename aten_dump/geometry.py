"""How far a tensor reaches in the memory that it is seen in, and which of its elements are there once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements lie between the first and the last of a tensor, both counted; 0 if it has none."""
    if 0 in shape:
        return 0
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=False)) + 1


def once(tensor: torch.Tensor) -> torch.Tensor:
    """Return the view of a strided tensor that has each element which an expanded dimension repeats once."""
    if 0 not in tensor.stride() or not tensor.numel():
        return tensor
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]
