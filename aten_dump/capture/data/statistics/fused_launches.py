"""Launches the kernels of `triton_kernel` on tensors; importing this imports Triton.

Theory of operation
    Triton asks each argument of each launch for what it knows of it, and looks up what it has compiled for that: two
    thirds of what a launch takes. So what it has compiled is kept here, by all that decides it, and launched directly.
    Its arguments then are addresses and numbers, and no tensor is asked for anything that a mode could see.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from triton.runtime import driver  # type: ignore[import-not-found,unused-ignore]

from ...devices import made_current
from ...memory.geometry import covers
from ...torch_internals.addresses import address_of
from ...torch_internals.quiet import quiet
from . import triton_kernel
from .rows import rows_and_columns

PARTS: Final = 11  # numbers in a column: see `triton_kernel._store`
# Of a value, when its columns are put together; spread: squares around the mean.
RESULTS: Final = ("low", "high", "sum", "squares", "spread", "nan", "posinf", "neginf", "zero", "negative")
MOST_PROGRAMS: Final = 512
BLOCK: Final = 512
_ROWS: Final = 8  # of a block of elements that lie in rows
_COLUMNS: Final = 128
_WARPS: Final = 8  # of all kernels: sums are added up in the same order, however a value was launched
_ALIGNED: Final = 16  # bytes
_MOST_INT32: Final = 2**31 - 1
_MOST_KEPT: Final = 4096
_TYPES: Final = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.uint8: tl.uint8,
    torch.bool: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
}
_compiled: Final[dict[tuple[Any, ...], Any]] = {}  # by all that decides what Triton compiles
_refused: Final[set[str]] = set()  # names of kernels that this Triton does not launch so
Row = tuple[int, int, int, int]  # address, elements, blocks for each program, first column


def programs_of(count: int) -> tuple[int, int]:
    """Return how many blocks each program takes of so many elements in a row, and how many programs there are."""
    all_blocks = -(-count // BLOCK)
    blocks = -(-all_blocks // MOST_PROGRAMS)
    return blocks, -(-all_blocks // blocks)


def current_stream(device: int) -> int:
    """Return the handle of the thread's current stream of a device."""
    handle: int = driver.active.get_current_stream(device)
    return handle


def address_together(tensor: torch.Tensor, is_dense: bool) -> int:
    """Return the address of a tensor that `reduce_many` takes, `is_dense` if that covers its memory; else 0."""
    address = address_of(tensor)
    return address if address % _ALIGNED == 0 and (is_dense or covers(tensor)) else 0


def reduce(tensor: torch.Tensor, into: torch.Tensor, start: int, signs: bool, is_dense: bool) -> int:
    """Reduce a tensor of 16 or 32 bit floats, integers of 16 bits at most, or booleans on the current stream.

    Args:
        tensor: not empty, without the bit of a negative view; its elements may lie in any order.
        into: f64[PARTS, columns] on its device.
        start: the column from which on `into` has room for MOST_PROGRAMS.
        signs: count zeros and negative numbers, too; else these results are 0.
        is_dense: it is known that its elements are all of a piece of memory.

    Returns:
        how many columns were filled; 0 where its elements lie in too many dimensions.
    """
    count, width = tensor.numel(), into.size(1)
    if is_dense or covers(tensor):
        blocks, programs = programs_of(count)
        numbers: tuple[Any, ...] = start, width, count, blocks, signs, BLOCK
        _launch((triton_kernel.reduce_one, count > _MOST_INT32, signs), programs, tensor, into, numbers)
        return programs
    found = rows_and_columns(tuple(tensor.shape), tensor.stride())
    if found is None:
        return 0
    groups, group_stride, in_group, row_stride, columns, column_stride = found
    rows = groups * in_group
    rows_each = -(-rows // MOST_PROGRAMS)
    programs = -(-rows // rows_each)
    strides = group_stride, row_stride, columns, column_stride
    numbers = start, width, rows, in_group, *strides, rows_each, signs, _ROWS, _COLUMNS
    _launch((triton_kernel.reduce_rows, found, signs), programs, tensor, into, numbers)
    return programs


def reduce_many(rows: list[Row], dtype: torch.dtype, table: torch.Tensor, into: torch.Tensor, signs: bool) -> None:
    """Reduce many tensors of one dtype on the current stream by one launch, without memory of the device. Call inside
    `quiet()`.

    Args:
        rows: of each what `programs_of` and `address_together` say; there is room for its columns.
        dtype: one that `reduce` takes.
        table: i64[as many at least, 4] on its device, overwritten.
        into: as there.
        signs: as there.
    """
    most = max(-(-count // (blocks * BLOCK)) for _, count, blocks, _ in rows)
    with made_current(into.device):
        _fill(table, rows)
        triton_kernel.reduce_each[(most, len(rows))](
            table, into, into.size(1), _TYPES[dtype], signs, BLOCK, num_warps=_WARPS
        )


def put_together(places: list[tuple[int, int]], columns: torch.Tensor, table: torch.Tensor, into: torch.Tensor) -> None:
    """Put the columns of each value together on the current stream, without memory of the device. Call inside
    `quiet()`.

    Args:
        places: the first column of each value, and how many it has.
        columns: f64[PARTS, columns].
        table: i64[as many at least, 2], overwritten.
        into: f64[RESULTS, places], a row for each of RESULTS.
    """
    with made_current(columns.device):
        _fill(table, places)
        most = triton.next_power_of_2(MOST_PROGRAMS)
        triton_kernel.put_together[(len(places),)](
            columns, table, into, columns.size(1), len(places), most, num_warps=_WARPS
        )


def _fill(table: torch.Tensor, rows: list[Any]) -> None:
    """Write numbers to the first rows of a table, for which the program need not wait."""
    host = torch.from_numpy(np.array(rows, dtype=np.int64))
    with suppress(RuntimeError):  # no memory that may be pinned is left
        host = host.pin_memory()
    table[: len(rows)].copy_(host, non_blocking=True)


def _launch(
    which: tuple[Any, Any, bool], programs: int, tensor: torch.Tensor, into: torch.Tensor, numbers: tuple[Any, ...]
) -> None:
    """Launch a kernel; `which` is that, and what decides, beside dtype and alignment, what Triton compiles of it."""
    device, address = tensor.get_device(), address_of(tensor)
    kernel, layout, signs = which
    key = layout, signs, tensor.dtype, address % _ALIGNED == 0, device
    compiled = _compiled.get(key)
    if compiled is not None and driver.active.get_current_device() == device:
        grid_and_stream = programs, 1, 1, driver.active.get_current_stream(device)
        what = compiled.function, compiled.packed_metadata, None, None, None  # the last three are hooks of profilers
        try:
            compiled.run(*grid_and_stream, *what, address, into.data_ptr(), *numbers)
            return
        except TypeError:  # Triton 3.2 is given no constants here
            _refused.add(kernel.__name__)
            _compiled.clear()
    with made_current(tensor.device), quiet():  # Triton launches on the current one, wherever the elements lie
        elements = tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
        compiled = kernel[(programs,)](elements, into, *numbers, num_warps=_WARPS)
    if compiled is not None and kernel.__name__ not in _refused:  # Triton's interpreter returns nothing
        if len(_compiled) >= _MOST_KEPT:
            _compiled.clear()
        _compiled[key] = compiled
