"""Statistics of floats and small integers in one pass over their memory, with Triton; importing this imports Triton.

Tests run the kernels on a GPU where there is one (tests/cuda); without one they run in Triton's interpreter and are
compiled for GPUs, where Triton is installed. `fused_launches` launches them.

Theory of operation
    Each program reduces one stretch of the elements into its own column of a matrix that many values share
    (`fused_results`), and later one program for each value puts its columns together: no atomics, so the result is the
    same in every run. Sums are float64 throughout.

    What an element costs is what the kernel takes, so no more is done for each than min, max, its sum, and that of
    squares around a centre. The centre is the stretch's first element, of which std and l2norm lose little: they are n
    times those around the mean, or zero, at most, as the centre is one of n elements. They are put together as in Chan,
    Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance". NaN and Inf are counted by going over the
    stretch once more where its sum is not finite: float64 holds any sum of finite ones. Min and max leave out NaN.

    Statistics do not depend on the order of the elements. So the dimensions of a view are put in the order of their
    strides, and merged where one goes on where the other ends (`rows_and_columns`): queries that were split off a
    projection and transposed are rows again, each of them in one piece. Views of more than three dimensions then are
    not reduced here.

    What Triton knows of an argument, that it is 1 or a multiple of 16, is compiled in, while the program waits. So it
    is given those alone by which it can load many elements at a time.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]


# Triton reads annotations, and knows no others than its own.
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _none(SHAPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the results of no elements, SHAPE of them."""
    low = tl.full(SHAPE, float("inf"), tl.float32)
    high = tl.full(SHAPE, -float("inf"), tl.float32)
    real = tl.zeros(SHAPE, tl.float64)
    count = tl.zeros(SHAPE, tl.int32)
    return low, high, real, real, count, count


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _with(  # type: ignore[no-untyped-def]
    x, here, centre, MASKED: tl.constexpr, SIGNS: tl.constexpr, low, high, total, around, zero, negative
):
    """Return all results with more elements; MASKED: those `here` count, and the others are 0."""
    low = tl.minimum(low, tl.where(here, x, float("inf")) if MASKED else x)
    high = tl.maximum(high, tl.where(here, x, -float("inf")) if MASKED else x)
    wide = x.to(tl.float64)
    away = wide - centre
    if MASKED:
        away = tl.where(here, away, 0.0)
    total += wide
    around += away * away
    if SIGNS:
        zero += ((here & (x == 0.0)) if MASKED else (x == 0.0)).to(tl.int32)
        negative += (x < 0.0).to(tl.int32)
    return low, high, total, around, zero, negative


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _with_nonfinite(x, nan, posinf, neginf):  # type: ignore[no-untyped-def]
    """Return the counts with more elements."""
    infinity = float("inf")
    nan += (x != x).to(tl.int32)
    posinf += (x == infinity).to(tl.int32)
    neginf += (x == -infinity).to(tl.int32)
    return nan, posinf, neginf


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store(  # type: ignore[no-untyped-def]
    result, start, width, size, centre, low, high, total, around, zero, negative, nan, posinf, neginf
):
    """Write this program's column of the results."""
    column = result + start + tl.program_id(0)
    tl.store(column, tl.min(low, axis=0).to(tl.float64))
    tl.store(column + width, tl.max(high, axis=0).to(tl.float64))
    tl.store(column + 2 * width, total)
    tl.store(column + 3 * width, tl.sum(around, axis=0))
    tl.store(column + 4 * width, centre)
    tl.store(column + 5 * width, size.to(tl.float64))
    tl.store(column + 6 * width, tl.sum(nan, axis=0).to(tl.float64))
    tl.store(column + 7 * width, tl.sum(posinf, axis=0).to(tl.float64))
    tl.store(column + 8 * width, tl.sum(neginf, axis=0).to(tl.float64))
    tl.store(column + 9 * width, tl.sum(zero, axis=0).to(tl.float64))
    tl.store(column + 10 * width, tl.sum(negative, axis=0).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _reduce_stretch(  # type: ignore[no-untyped-def]
    elements, result, start, width, count, blocks, ALIGNED: tl.constexpr, SIGNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Reduce this program's blocks of elements that lie in a row; ALIGNED: at a multiple of 16 bytes, as Triton does
    not know.
    """
    lane = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * blocks * BLOCK
    low, high, total, around, zero, negative = _none([BLOCK])
    centre = tl.load(elements + first).to(tl.float32).to(tl.float64)
    whole = tl.minimum(blocks, (count - first) // BLOCK)
    for block in range(whole):  # without a mask, by which loads would be of an element each
        place = elements + first + block * BLOCK + lane
        if ALIGNED:
            place = tl.multiple_of(place, [16])
        x = tl.load(place).to(tl.float32)
        low, high, total, around, zero, negative = _with(
            x, lane >= 0, centre, False, SIGNS, low, high, total, around, zero, negative
        )
    if whole < blocks:
        at = first + whole * BLOCK + lane
        here = at < count
        rest = tl.load(elements + at, mask=here, other=0).to(tl.float32)
        low, high, total, around, zero, negative = _with(
            rest, here, centre, True, SIGNS, low, high, total, around, zero, negative
        )
    whole_sum = tl.sum(total, axis=0)
    nan, posinf, neginf = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    if whole_sum - whole_sum != 0.0:
        for again in range(blocks):
            again_at = first + again * BLOCK + lane
            again_x = tl.load(elements + again_at, mask=again_at < count, other=0).to(tl.float32)
            nan, posinf, neginf = _with_nonfinite(again_x, nan, posinf, neginf)
    size = tl.minimum(count - first, blocks * BLOCK)
    _store(result, start, width, size, centre, low, high, whole_sum, around, zero, negative, nan, posinf, neginf)


@triton.jit(do_not_specialize=["start", "width", "count", "blocks"])  # type: ignore[untyped-decorator,unused-ignore]
def reduce_one(  # type: ignore[no-untyped-def]
    elements, result, start, width, count, blocks, SIGNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Reduce elements that lie in a row: so many blocks for each program."""
    _reduce_stretch(elements, result, start, width, count, blocks, False, SIGNS, BLOCK)


@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator,unused-ignore]
def reduce_each(  # type: ignore[no-untyped-def]
    table, result, width, DTYPE: tl.constexpr, SIGNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Reduce the elements of many values: of each the table has the address, a multiple of 16 bytes, how many there
    are, the blocks for each program, and the first column.
    """
    row = table + tl.program_id(1) * 4
    count, blocks = tl.load(row + 1), tl.load(row + 2)
    if tl.program_id(0) * blocks * BLOCK < count:
        elements = tl.load(row).to(tl.pointer_type(DTYPE))
        _reduce_stretch(elements, result, tl.load(row + 3), width, count, blocks, True, SIGNS, BLOCK)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _block(  # type: ignore[no-untyped-def]
    elements, top, left, past, in_group, group_stride, row_stride, columns, column_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return elements from a row and a column on, and which of them there are; the others are 0."""
    row, column = (top + tl.arange(0, ROWS)).to(tl.int64), (left + tl.arange(0, COLUMNS)).to(tl.int64)
    start = row // in_group * group_stride + row % in_group * row_stride
    here = (row < past)[:, None] & (column < columns)[None, :]
    x = tl.load(elements + start[:, None] + column[None, :] * column_stride, mask=here, other=0).to(tl.float32)
    return tl.reshape(x, [ROWS * COLUMNS]), tl.reshape(here, [ROWS * COLUMNS])


@triton.jit(do_not_specialize=["start", "width", "rows", "in_group", "rows_each"])  # type: ignore[untyped-decorator,unused-ignore]
def reduce_rows(  # type: ignore[no-untyped-def]
    elements, result, start, width, rows, in_group, group_stride, row_stride, columns, column_stride, rows_each,
    SIGNS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Reduce elements that lie in groups of so many rows of columns: so many rows for each program."""
    first = tl.program_id(0).to(tl.int64) * rows_each
    past = tl.minimum(rows, first + rows_each)
    low, high, total, around, zero, negative = _none([ROWS * COLUMNS])
    begin = first // in_group * group_stride + first % in_group * row_stride
    centre = tl.load(elements + begin).to(tl.float32).to(tl.float64)
    for top in range(first, past, ROWS):
        for left in range(0, columns, COLUMNS):
            x, here = _block(
                elements, top, left, past, in_group, group_stride, row_stride, columns, column_stride, ROWS, COLUMNS
            )
            low, high, total, around, zero, negative = _with(
                x, here, centre, True, SIGNS, low, high, total, around, zero, negative
            )
    whole_sum = tl.sum(total, axis=0)
    none = tl.zeros([ROWS * COLUMNS], tl.int32)
    nan, posinf, neginf = none, none, none
    if whole_sum - whole_sum != 0.0:
        for again in range(first, past, ROWS):
            for across in range(0, columns, COLUMNS):
                again_x, _ = _block(
                    elements, again, across, past, in_group, group_stride, row_stride, columns, column_stride,
                    ROWS, COLUMNS,
                )  # fmt: skip
                nan, posinf, neginf = _with_nonfinite(again_x, nan, posinf, neginf)
    size = (past - first).to(tl.int64) * columns
    _store(result, start, width, size, centre, low, high, whole_sum, around, zero, negative, nan, posinf, neginf)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sum_of(column, here):  # type: ignore[no-untyped-def]
    """Return the sum of a result of the columns `here`."""
    return tl.sum(tl.load(column, mask=here, other=0.0), axis=0)


@triton.jit(do_not_specialize=["width", "values"])  # type: ignore[untyped-decorator,unused-ignore]
def put_together(parts, table, result, width, values, PROGRAMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Put the columns of each value together to one; of each the table has the first, and how many there are."""
    value = tl.program_id(0)
    first, programs = tl.load(table + 2 * value), tl.load(table + 2 * value + 1)
    lane = tl.arange(0, PROGRAMS)
    here = lane < programs
    column = parts + first + lane
    total = tl.load(column + 2 * width, mask=here, other=0.0)
    around = tl.load(column + 3 * width, mask=here, other=0.0)
    centre = tl.load(column + 4 * width, mask=here, other=0.0)
    size = tl.load(column + 5 * width, mask=here, other=0.0)
    squares = around + 2.0 * centre * total - size * centre * centre
    whole_sum = tl.sum(total, axis=0)
    mean = total / tl.where(here, size, 1.0)
    within = tl.maximum(around - size * (mean - centre) * (mean - centre), 0.0)
    apart = mean - whole_sum / tl.sum(size, axis=0)
    into = result + value
    tl.store(into, tl.min(tl.load(column, mask=here, other=float("inf")), axis=0))
    tl.store(into + values, tl.max(tl.load(column + width, mask=here, other=-float("inf")), axis=0))
    tl.store(into + 2 * values, whole_sum)
    tl.store(into + 3 * values, tl.sum(squares, axis=0))
    tl.store(into + 4 * values, tl.sum(within + size * apart * apart, axis=0))
    tl.store(into + 5 * values, _sum_of(column + 6 * width, here))
    tl.store(into + 6 * values, _sum_of(column + 7 * width, here))
    tl.store(into + 7 * values, _sum_of(column + 8 * width, here))
    tl.store(into + 8 * values, _sum_of(column + 9 * width, here))
    tl.store(into + 9 * values, _sum_of(column + 10 * width, here))
