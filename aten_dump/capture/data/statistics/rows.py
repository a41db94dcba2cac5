"""How elements are cut into rows, each of which is reduced for itself."""

from __future__ import annotations

import functools
from typing import Final

MOST_ROWS: Final = 256
_FEW_ROWS: Final = 64
_LONGEST_ROW: Final = 1 << 20  # elements, where there are few rows: a row is reduced by one program


@functools.lru_cache(maxsize=4096)
def rows_of(count: int) -> int:
    """Return in how many rows of the same length to cut so many elements."""
    most = min(MOST_ROWS, max(1, count // 1024))
    return next(n for n in range(most, 0, -1) if count % n == 0)


def row_lengths(count: int) -> list[int]:
    """Return the lengths of the rows that a piece of so many elements is cut in."""
    rows = rows_of(count)
    return [count // rows] * rows


@functools.lru_cache(maxsize=4096)
def rows_and_columns(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int, int, int, int, int] | None:
    """Return where the elements of a tensor lie, none twice but those that an expanded dimension repeats.

    Returns:
        groups, their stride, rows in each, their stride, columns of a row, their stride; None where these do not do.
    """
    dims: list[tuple[int, int]] = []  # size and stride, the greatest first, repeated elements before all
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda dim: dim[1] or 1 << 63, reverse=True):
        if dims and dims[-1][1] == size * step and dims[-1][1]:
            dims[-1] = (dims[-1][0] * size, step)
        elif size != 1:
            dims.append((size, step))
    if len(dims) < 3 and dims and _few_rows(dims):
        size, step = dims.pop()
        parts = rows_of(size)
        dims += [(parts, size // parts * step), (size // parts, step)]
    if len(dims) > 3:
        return None
    (groups, group_stride), (rows, row_stride), (columns, column_stride) = [(1, 0)] * (3 - len(dims)) + dims
    if columns > _LONGEST_ROW and groups * rows < _FEW_ROWS:
        return None
    return groups, group_stride, rows, row_stride, columns, column_stride


def _few_rows(dims: list[tuple[int, int]]) -> bool:
    """Return True if there are too few rows for many programs."""
    return len(dims) == 1 or dims[0][0] < _FEW_ROWS
