"""How the ranks of a group lie: the sizes and strides that make up their numbers, as in a mesh of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Strides: TypeAlias = tuple[tuple[int, int], ...]  # size and stride of each dimension, the innermost first


def strides_of(ranks: Sequence[int]) -> Strides:
    """Return the sizes and strides of which ranks are made up; () where they lie in no such order.

    Args:
        ranks: global, going up.

    Example:
        >>> strides_of([0, 1, 8, 9, 16, 17])
        ((2, 1), (3, 8))
    """
    found: list[tuple[int, int]] = []
    heads = list(ranks)
    while len(heads) > 1:
        stride = heads[1] - heads[0]
        size = next((n for n in range(2, len(heads)) if heads[n] - heads[n - 1] != stride), len(heads))
        rest = heads[::size]
        if stride < 1 or heads != [head + stride * n for head in rest for n in range(size)]:
            return ()
        found.append((size, stride))
        heads = rest
    return tuple(found)


def strides_text(strides: Strides) -> str:
    """Return sizes and strides in words: ``8 ranks next to one another``, ``16 ranks 8 apart``."""
    (size, stride), *outer = strides
    text = f"{size} ranks " + ("next to one another" if stride == 1 else f"{stride} apart")
    return text + "".join(f", {times} times, {apart} apart" for times, apart in outer)
