"""All statistics of a floating tensor in one pass over its memory, with Triton; importing this imports Triton.

Tests run the kernels on a GPU where there is one (tests/cuda); without one they run in Triton's interpreter and are
compiled for GPUs, where Triton is installed. `device_batches` uses them where `devices.has_triton` says so, for dtypes
of 32 bits and less.

Theory of operation
    Each program reduces one stretch of the elements into its own column of a matrix that many values share
    (`fused_results`): no atomics, so the result is the same in every run. Sums are float64 throughout. NaN are left out
    of min and max here, and counted. For std a program adds up squares around the mean of its first block, its centre,
    so that of numbers far from zero little is lost; put together as in Chan, Golub and LeVeque 1983, "Algorithms for
    Computing the Sample Variance".

    Statistics do not depend on the order of the elements. So the dimensions of a view are put in the order of their
    strides, and merged where one goes on where the other ends (`rows_and_columns`): queries that were split off a
    projection and transposed are rows again, each of them in one piece. Views of more than three dimensions then are
    not reduced here.

    What Triton knows of an argument, that it is 1 or a multiple of 16, is compiled in, while the program waits. So it
    is told of those alone by which it can load many elements at a time.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

from ...devices import made_current
from ...memory.geometry import covers
from .rows import rows_and_columns

RESULTS: Final = ("low", "high", "sum", "squares", "nan", "posinf", "neginf", "zero", "negative")
OF_SPREAD: Final = ("around", "centre", "size")  # the rows after these, where they are asked for
MOST_PROGRAMS: Final = 512
_BLOCK: Final = 512
_ROWS: Final = 8  # of a block of elements that lie in rows
_COLUMNS: Final = 128
_WARPS: Final = 8


# Triton reads annotations, and knows no others than its own.
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _none(SHAPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the results of no elements, SHAPE of them."""
    low = tl.full(SHAPE, float("inf"), tl.float32)
    high = tl.full(SHAPE, -float("inf"), tl.float32)
    real = tl.zeros(SHAPE, tl.float64)
    count = tl.zeros(SHAPE, tl.int32)
    return low, high, real, real, real, count, count, count, count, count


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _with(  # type: ignore[no-untyped-def]
    x, here, centre, SIGNS: tl.constexpr, SPREAD: tl.constexpr,
    low, high, total, squares, around, nan, posinf, neginf, zero, negative,
):  # fmt: skip
    """Return all results with more elements, of which those `here` count; the others are 0."""
    infinity = float("inf")
    is_number = here & (x == x)
    low = tl.minimum(low, tl.where(is_number, x, infinity))
    high = tl.maximum(high, tl.where(is_number, x, -infinity))
    wide = x.to(tl.float64)
    total += wide
    squares += wide * wide
    if SPREAD:
        away = tl.where(here, wide - centre, 0.0)
        around += away * away
    nan += (x != x).to(tl.int32)
    posinf += (x == infinity).to(tl.int32)
    neginf += (x == -infinity).to(tl.int32)
    if SIGNS:
        zero += (here & (x == 0.0)).to(tl.int32)
        negative += (x < 0.0).to(tl.int32)
    return low, high, total, squares, around, nan, posinf, neginf, zero, negative


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store(  # type: ignore[no-untyped-def]
    result, start, width, size, centre, SPREAD: tl.constexpr,
    low, high, total, squares, around, nan, posinf, neginf, zero, negative,
):  # fmt: skip
    """Write this program's column of the results."""
    column = result + start + tl.program_id(0)
    tl.store(column, tl.min(low, axis=0).to(tl.float64))
    tl.store(column + width, tl.max(high, axis=0).to(tl.float64))
    tl.store(column + 2 * width, tl.sum(total, axis=0))
    tl.store(column + 3 * width, tl.sum(squares, axis=0))
    tl.store(column + 4 * width, tl.sum(nan, axis=0).to(tl.float64))
    tl.store(column + 5 * width, tl.sum(posinf, axis=0).to(tl.float64))
    tl.store(column + 6 * width, tl.sum(neginf, axis=0).to(tl.float64))
    tl.store(column + 7 * width, tl.sum(zero, axis=0).to(tl.float64))
    tl.store(column + 8 * width, tl.sum(negative, axis=0).to(tl.float64))
    if SPREAD:
        tl.store(column + 9 * width, tl.sum(around, axis=0))
        tl.store(column + 10 * width, centre)
        tl.store(column + 11 * width, size.to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _mean(x, here):  # type: ignore[no-untyped-def]
    """Return the mean of the elements `here`, of which there is one at least; the others are 0."""
    return tl.sum(x.to(tl.float64), axis=0) / tl.sum(here.to(tl.float64), axis=0)


@triton.jit(do_not_specialize=["start", "width", "count", "blocks"])  # type: ignore[untyped-decorator,unused-ignore]
def _reduce(  # type: ignore[no-untyped-def]
    elements, result, start, width, count, blocks, SIGNS: tl.constexpr, SPREAD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Reduce elements that lie in a row: so many blocks for each program."""
    lane = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * blocks * BLOCK
    low, high, total, squares, around, nan, posinf, neginf, zero, negative = _none([BLOCK])
    centre = 0.0
    if SPREAD:
        begins = first + lane < count
        centre = _mean(tl.load(elements + first + lane, mask=begins, other=0.0).to(tl.float32), begins)
    whole = tl.minimum(blocks, (count - first) // BLOCK)
    for block in range(whole):  # without a mask, by which loads would be of an element each
        x = tl.load(elements + first + block * BLOCK + lane).to(tl.float32)
        low, high, total, squares, around, nan, posinf, neginf, zero, negative = _with(
            x, lane >= 0, centre, SIGNS, SPREAD,
            low, high, total, squares, around, nan, posinf, neginf, zero, negative,
        )  # fmt: skip
    if whole < blocks:
        place = first + whole * BLOCK + lane
        here = place < count
        rest = tl.load(elements + place, mask=here, other=0.0).to(tl.float32)
        low, high, total, squares, around, nan, posinf, neginf, zero, negative = _with(
            rest, here, centre, SIGNS, SPREAD,
            low, high, total, squares, around, nan, posinf, neginf, zero, negative,
        )  # fmt: skip
    size = tl.minimum(count - first, blocks * BLOCK)
    _store(
        result, start, width, size, centre, SPREAD,
        low, high, total, squares, around, nan, posinf, neginf, zero, negative,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _block(  # type: ignore[no-untyped-def]
    elements, top, left, past, in_group, group_stride, row_stride, columns, column_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return elements from a row and a column on, and which of them there are; the others are 0."""
    row, column = (top + tl.arange(0, ROWS)).to(tl.int64), (left + tl.arange(0, COLUMNS)).to(tl.int64)
    start = row // in_group * group_stride + row % in_group * row_stride
    here = (row < past)[:, None] & (column < columns)[None, :]
    x = tl.load(elements + start[:, None] + column[None, :] * column_stride, mask=here, other=0.0).to(tl.float32)
    return tl.reshape(x, [ROWS * COLUMNS]), tl.reshape(here, [ROWS * COLUMNS])


@triton.jit(do_not_specialize=["start", "width", "rows", "in_group", "rows_each"])  # type: ignore[untyped-decorator,unused-ignore]
def _reduce_rows(  # type: ignore[no-untyped-def]
    elements, result, start, width, rows, in_group, group_stride, row_stride, columns, column_stride, rows_each,
    SIGNS: tl.constexpr, SPREAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Reduce elements that lie in groups of so many rows of columns: so many rows for each program."""
    first = tl.program_id(0).to(tl.int64) * rows_each
    past = tl.minimum(rows, first + rows_each)
    low, high, total, squares, around, nan, posinf, neginf, zero, negative = _none([ROWS * COLUMNS])
    centre = 0.0
    if SPREAD:
        begin, begins = _block(
            elements, first, 0, past, in_group, group_stride, row_stride, columns, column_stride, ROWS, COLUMNS
        )
        centre = _mean(begin, begins)
    for top in range(first, past, ROWS):
        for left in range(0, columns, COLUMNS):
            x, here = _block(
                elements, top, left, past, in_group, group_stride, row_stride, columns, column_stride, ROWS, COLUMNS
            )
            low, high, total, squares, around, nan, posinf, neginf, zero, negative = _with(
                x, here, centre, SIGNS, SPREAD,
                low, high, total, squares, around, nan, posinf, neginf, zero, negative,
            )  # fmt: skip
    size = (past - first).to(tl.int64) * columns
    _store(
        result, start, width, size, centre, SPREAD,
        low, high, total, squares, around, nan, posinf, neginf, zero, negative,
    )  # fmt: skip


def reduce(tensor: torch.Tensor, into: torch.Tensor, start: int, signs: bool, spread: bool) -> int:
    """Reduce a tensor of 16 or 32 bit floats, not empty, without the bit of a negative view.

    Args:
        tensor: its elements may lie in any order.
        into: f64[rows, columns] on its device, a row for each of RESULTS and, with `spread`, of OF_SPREAD.
        start: the column from which on `into` has room for MOST_PROGRAMS.
        signs: count zeros and negative numbers, too; else these results are 0.
        spread: what std is made of, too.

    Returns:
        how many columns were filled; 0 where its elements lie in too many dimensions.
    """
    count, width = tensor.numel(), into.size(1)
    if covers(tensor):
        all_blocks = -(-count // _BLOCK)
        blocks = -(-all_blocks // MOST_PROGRAMS)
        programs = -(-all_blocks // blocks)
        _launch(_reduce, programs, (tensor, into, start, width, count, blocks, signs, spread, _BLOCK))
        return programs
    found = rows_and_columns(tuple(tensor.shape), tensor.stride())
    if found is None:
        return 0
    groups, group_stride, in_group, row_stride, columns, column_stride = found
    rows = groups * in_group
    rows_each = -(-rows // MOST_PROGRAMS)
    programs = -(-rows // rows_each)
    strides = (group_stride, row_stride, columns, column_stride)
    arguments = (tensor, into, start, width, rows, in_group, *strides, rows_each, signs, spread, _ROWS, _COLUMNS)
    _launch(_reduce_rows, programs, arguments)
    return programs


def _launch(kernel: Any, programs: int, arguments: tuple[Any, ...]) -> None:
    """Run a kernel on the device of its first argument: Triton launches on the current one, wherever that lies."""
    with made_current(arguments[0].device):
        kernel[(programs,)](*arguments, num_warps=_WARPS)
