"""All statistics of a floating tensor in one pass over its memory, with Triton; importing this imports Triton.

Tests run the kernel on a GPU where there is one (tests/cuda), and in Triton's interpreter where Triton is installed.
`on_device` uses it where `devices.has_triton` says so, for dtypes of 32 bits and less.

Theory of operation
    Each program reduces one stretch of the elements into its own column of the result, f64[9, programs]: no atomics,
    so the result is the same in every run. Sums are float64 throughout. NaN are left out of min and max here, and
    counted; `on_device.finish` puts the columns together.
"""

from __future__ import annotations

from typing import Final

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

from ...devices import made_current

RESULTS: Final = ("low", "high", "sum", "norm", "nan", "posinf", "neginf", "zero", "negative")
MOST_PROGRAMS: Final = 512
_BLOCK: Final = 2048
_WARPS: Final = 8


# Triton reads annotations, and knows no others than its own.
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _with(x, here, low, high, total, squares, nan, posinf, neginf, zero, negative):  # type: ignore[no-untyped-def]
    """Return all results with one block more, of which the elements `here` count."""
    infinity = float("inf")
    is_number = here & (x == x)
    low = tl.minimum(low, tl.where(is_number, x, infinity))
    high = tl.maximum(high, tl.where(is_number, x, -infinity))
    wide = x.to(tl.float64)
    total += wide
    squares += wide * wide
    nan += (x != x).to(tl.int32)
    posinf += (x == infinity).to(tl.int32)
    neginf += (x == -infinity).to(tl.int32)
    zero += (here & (x == 0.0)).to(tl.int32)
    negative += (x < 0.0).to(tl.int32)
    return low, high, total, squares, nan, posinf, neginf, zero, negative


# Each combination of what Triton knows of the arguments is compiled for itself, while the program waits.
@triton.jit(do_not_specialize=["count", "programs", "blocks"])  # type: ignore[untyped-decorator,unused-ignore]
def _reduce(elements, result, count, programs, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    first = program.to(tl.int64) * blocks * BLOCK
    infinity = float("inf")
    low = tl.full((BLOCK,), infinity, tl.float32)
    high = tl.full((BLOCK,), -infinity, tl.float32)
    total = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    nan = tl.zeros((BLOCK,), tl.int32)
    posinf = tl.zeros((BLOCK,), tl.int32)
    neginf = tl.zeros((BLOCK,), tl.int32)
    zero = tl.zeros((BLOCK,), tl.int32)
    negative = tl.zeros((BLOCK,), tl.int32)
    # Loads without a mask are of many elements at a time.
    whole = tl.minimum(blocks, (count - first) // BLOCK)
    for block in range(whole):
        x = tl.load(elements + first + block * BLOCK + lane).to(tl.float32)
        low, high, total, squares, nan, posinf, neginf, zero, negative = _with(
            x, x == x, low, high, total, squares, nan, posinf, neginf, zero, negative
        )
    if whole < blocks:
        place = first + whole * BLOCK + lane
        here = place < count
        x = tl.load(elements + place, mask=here, other=0.0).to(tl.float32)
        low, high, total, squares, nan, posinf, neginf, zero, negative = _with(
            x, here, low, high, total, squares, nan, posinf, neginf, zero, negative
        )
    column = result + program
    tl.store(column, tl.min(low, axis=0).to(tl.float64))
    tl.store(column + programs, tl.max(high, axis=0).to(tl.float64))
    tl.store(column + 2 * programs, tl.sum(total, axis=0))
    tl.store(column + 3 * programs, tl.sqrt(tl.sum(squares, axis=0)))
    tl.store(column + 4 * programs, tl.sum(nan, axis=0).to(tl.float64))
    tl.store(column + 5 * programs, tl.sum(posinf, axis=0).to(tl.float64))
    tl.store(column + 6 * programs, tl.sum(neginf, axis=0).to(tl.float64))
    tl.store(column + 7 * programs, tl.sum(zero, axis=0).to(tl.float64))
    tl.store(column + 8 * programs, tl.sum(negative, axis=0).to(tl.float64))


def reduce(flat: torch.Tensor) -> torch.Tensor:
    """Return f64[9, programs] of a contiguous 1-D tensor of 16 or 32 bit floats, not empty."""
    count = flat.numel()
    all_blocks = triton.cdiv(count, _BLOCK)
    blocks = triton.cdiv(all_blocks, MOST_PROGRAMS)
    programs = triton.cdiv(all_blocks, blocks)
    result = torch.empty(len(RESULTS), programs, dtype=torch.float64, device=flat.device)
    with made_current(flat.device):  # Triton launches on the current device, wherever the elements are
        _reduce[(programs,)](flat, result, count, programs, blocks, BLOCK=_BLOCK, num_warps=_WARPS)
    return result
