"""How far a tensor reaches in the memory that it is seen in."""

from __future__ import annotations

from collections.abc import Sequence


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements lie between the first and the last of a tensor, both counted; 0 if it has none."""
    if 0 in shape:
        return 0
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=False)) + 1
