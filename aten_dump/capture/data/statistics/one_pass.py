"""All twelve statistics from one read of the memory, where the C file beside this one was compiled (hatch_build.py).

Without it, or where elements are not those of a dtype in `CODES`, what torch and numpy compute in several passes is
taken: `one_tensor` and `many_small_tensors`, which also say what the numbers are and how far off they may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import truediv
from typing import Any, Final

import numpy as np
import torch

from ....config import STATISTICS

try:
    from ._one_pass import of_many, of_one
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

# In the order of _one_pass.c.
_NAMES: Final = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
CODES: Final[dict[torch.dtype, int]] = {
    getattr(torch, name): code for code, name in enumerate(_NAMES) if hasattr(torch, name)
} | {torch.bool: _NAMES.index("uint8")}
_EXACT_IN_INT64: Final = 1 << 31
_THREAD_ELEMENTS: Final = 1 << 22  # for each thread: with fewer, beginning it costs more than it saves


def of_elements(flat: torch.Tensor) -> dict[str, Any] | None:
    """Return the statistics of a 1-D tensor by name; None where torch is to compute them.

    Args:
        flat: of any dtype and device, with at least one element.
    """
    code = CODES.get(flat.dtype)
    if not IS_COMPILED or code is None or not flat.is_cpu:
        return None
    flat = flat.contiguous()
    count = flat.numel()
    threads = max(1, min(torch.get_num_threads(), count // _THREAD_ELEMENTS))
    numbers = of_one(code, flat.data_ptr(), count, threads)
    columns = _columns([numbers], [count], flat.dtype.is_floating_point, STATISTICS)
    return {name: column[0] for name, column in zip(STATISTICS, columns, strict=True)}


def of_stretches(
    data: bytes, dtype: torch.dtype, counts: list[int], names: Iterable[str] = STATISTICS
) -> list[list[Any]] | None:
    """Return the statistics `names` of tensors of so many elements each, which lie end to end, a list for each tensor;
    None as `of_elements`.
    """
    code = CODES.get(dtype)
    if not IS_COMPILED or code is None:
        return None
    found = of_many(code, np.frombuffer(data, np.uint8).ctypes.data, counts)
    return list(map(list, zip(*_columns(found, counts, dtype.is_floating_point, names), strict=True)))


def _columns(found: list[Any], counts: list[int], is_floating_point: bool, names: Iterable[str]) -> list[list[Any]]:
    """Return the statistics, a list of all tensors for each name: some calls for all of them, not for each."""
    low, high, total, squares, deviations, nan, posinf, neginf, zero, negative, whole_low, whole_high, whole = zip(
        *found, strict=True
    )
    if not is_floating_point:
        low, high = whole_low, whole_high
        exact = (max(-a, b) < _EXACT_IN_INT64 for a, b in zip(low, high, strict=True))
        total = tuple(map(lambda is_exact, a, b: a if is_exact else b, exact, whole, total))
    columns: dict[str, Callable[[], Iterable[Any]]] = {
        "count": lambda: counts,
        "min": lambda: low,
        "max": lambda: high,
        "mean": lambda: map(truediv, total, counts),
        "l2norm": lambda: map(math.sqrt, squares),
        "std": lambda: [math.sqrt(x / (n - 1)) if n > 1 else None for x, n in zip(deviations, counts, strict=True)],
        "nan": lambda: map(int, nan),
        "posinf": lambda: map(int, posinf),
        "neginf": lambda: map(int, neginf),
        "zero": lambda: map(int, zero),
        "negative": lambda: map(int, negative),
        "positive": lambda: [int(n - a - b - c) for n, a, b, c in zip(counts, zero, negative, nan, strict=True)],
    }
    return [list(columns[name]()) for name in names]
