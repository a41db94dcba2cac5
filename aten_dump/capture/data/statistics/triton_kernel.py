"""All statistics of a floating tensor in one pass over its memory, with Triton; importing this imports Triton.

The project's tests have no device to run this on: they run the kernel in Triton's interpreter, where Triton is
installed. `on_device` uses it where `devices.has_triton` says so, for dtypes of 32 bits and less.

Theory of operation
    Each program reduces one stretch of the elements into its own column of the result, f64[9, programs]: no atomics,
    so the result is the same in every run. Sums are float64 throughout. NaN are left out of min and max here, and
    counted; `on_device.finish` puts the columns together.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

RESULTS: Final = ("low", "high", "sum", "norm", "nan", "posinf", "neginf", "zero", "negative")
MOST_PROGRAMS: Final = 512
_BLOCK: Final = 2048


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _reduce(elements: Any, result: Any, count: Any, programs: Any, blocks: Any, BLOCK: tl.constexpr) -> None:
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
    for block in range(blocks):
        place = first + block * BLOCK + lane
        here = place < count
        x = tl.load(elements + place, mask=here, other=0.0).to(tl.float32)
        is_nan = x != x
        low = tl.minimum(low, tl.where(here & (x == x), x, infinity))
        high = tl.maximum(high, tl.where(here & (x == x), x, -infinity))
        wide = x.to(tl.float64)
        total += wide
        squares += wide * wide
        nan += is_nan.to(tl.int32)
        posinf += (x == infinity).to(tl.int32)
        neginf += (x == -infinity).to(tl.int32)
        zero += (here & (x == 0.0)).to(tl.int32)
        negative += (x < 0.0).to(tl.int32)
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
    _reduce[(programs,)](flat, result, count, programs, blocks, BLOCK=_BLOCK)
    return result
