"""Statistics of many small tensors that lie end to end in one array: a few numpy calls for all of them.

Theory of operation
    Torch needs about 2 us for each reduction of each tensor, however small. Here the elements of a few hundred
    tensors of one dtype stand in one array, and ``ufunc.reduceat`` reduces each stretch of it. (Where `one_pass` is
    compiled and knows the dtype, it is asked instead.) What is computed is defined in `one_tensor`; floating dtypes are
    widened first, so that sums are float64 and nothing overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ....config import SIGNS
from ...torch_internals.quiet import quiet

Array = NDArray[Any]
Columns = dict[str, Any]  # name -> array or list with one entry for each tensor

_EXACT_IN_INT64: Final = 1 << 31


def _table_of(dtype: torch.dtype) -> Callable[[Array], Array]:
    """Return a function that looks up the numbers that the bytes of an 8-bit float stand for."""
    with quiet():
        numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    return lambda raw: numbers[raw]


def _of_bfloat16(raw: Array) -> Array:
    return (raw.astype(np.uint32) << 16).view(np.float32)


def _as_it_is(raw: Array) -> Array:
    return raw


def _to_float32(raw: Array) -> Array:
    return raw.astype(np.float32)


def _pairs(raw: Array) -> Array:
    return raw.reshape(-1, 2)


def _pairs_float32(raw: Array) -> Array:
    return raw.astype(np.float32).reshape(-1, 2)


# dtype -> numpy's type for its bytes, and what makes numbers of those. Other dtypes are no numbers to numpy.
_NUMBERS: Final[dict[torch.dtype, tuple[Any, Callable[[Array], Array]]]] = {
    getattr(torch, name): (kind, widen)
    for name, kind, widen in (
        ("float64", np.float64, _as_it_is),
        ("float32", np.float32, _as_it_is),
        ("float16", np.float16, _to_float32),
        ("bfloat16", np.uint16, _of_bfloat16),
        ("int64", np.int64, _as_it_is),
        ("int32", np.int32, _as_it_is),
        ("int16", np.int16, _as_it_is),
        ("int8", np.int8, _as_it_is),
        ("uint64", np.uint64, _as_it_is),
        ("uint32", np.uint32, _as_it_is),
        ("uint16", np.uint16, _as_it_is),
        ("uint8", np.uint8, _as_it_is),
        ("bool", np.uint8, _as_it_is),
        ("complex32", np.float16, _pairs_float32),
        ("complex64", np.float32, _pairs),
        ("complex128", np.float64, _pairs),
    )
    if hasattr(torch, name)
}
_EIGHT_BITS: Final = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
ITEM_BYTES: Final[dict[torch.dtype, int]] = {dtype: dtype.itemsize for dtype in _NUMBERS} | {
    getattr(torch, name): 1 for name in _EIGHT_BITS if hasattr(torch, name)
}


def compute(data: bytes, dtype: torch.dtype, sizes: list[int], names: tuple[str, ...]) -> list[list[Any]]:
    """Return the statistics `names` of each tensor, in that order.

    Args:
        data: the elements of all tensors, end to end.
        dtype: of all of them; a key of `ITEM_BYTES`.
        sizes: the bytes of each tensor, none of them 0.
        names: of `config.STATISTICS`.
    """
    if dtype not in _NUMBERS:
        _NUMBERS[dtype] = np.uint8, _table_of(dtype)
    kind, widen = _NUMBERS[dtype]
    counts = np.array(sizes, np.int64) // dtype.itemsize
    starts = np.cumsum(counts) - counts
    with np.errstate(all="ignore"):
        numbers = widen(np.frombuffer(data, kind))
        if dtype.is_complex:
            columns = _of_complex(numbers, starts, counts, names)
        elif dtype.is_floating_point:
            columns = _of_float(numbers, starts, counts, names)
        else:
            columns = _of_int(numbers, starts, counts, names)
    columns["count"] = counts
    missing = [None] * len(sizes)
    lists = [c.tolist() if isinstance(c := columns.get(name, missing), np.ndarray) else c for name in names]
    return list(map(list, zip(*lists, strict=True)))


def _sums(mask: Any, starts: Array) -> Array:
    """Count what is true in each tensor."""
    return np.add.reduceat(mask, starts, dtype=np.int64)


def _moments(wide: Array, total: Array, starts: Array, counts: Array, names: tuple[str, ...]) -> Columns:
    """Return mean, l2norm and std of float64 elements."""
    columns: Columns = {"mean": total / counts}
    if "l2norm" in names:
        columns["l2norm"] = np.sqrt(np.add.reduceat(wide * wide, starts))
    if "std" in names:
        columns["std"] = _std(wide - np.repeat(columns["mean"], counts), starts, counts)
    return columns


def _std(apart: Array, starts: Array, counts: Array) -> list[float | None]:
    spread = np.sqrt(np.add.reduceat(apart * apart, starts) / np.maximum(counts - 1, 1))
    return [x if n > 1 else None for x, n in zip(spread.tolist(), counts.tolist(), strict=True)]


def _of_float(x: Array, starts: Array, counts: Array, names: tuple[str, ...]) -> Columns:
    low, high = np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)
    columns: Columns = {"min": low, "max": high}
    if not {"mean", "l2norm", "std"}.isdisjoint(names):
        wide = x.astype(np.float64, copy=False)
        columns |= _moments(wide, np.add.reduceat(wide, starts), starts, counts, names)
    if np.isfinite(low).all() and np.isfinite(high).all():
        columns |= dict.fromkeys(("nan", "posinf", "neginf"), np.zeros(len(counts), np.int64))
    else:
        columns["nan"] = _sums(np.isnan(x), starts)
        columns["posinf"] = _sums(np.equal(x, np.inf), starts)
        columns["neginf"] = _sums(np.equal(x, -np.inf), starts)
    return columns | _signs(x, starts, names)


def _signs(x: Array, starts: Array, names: tuple[str, ...]) -> Columns:
    if SIGNS.isdisjoint(names):
        return {}
    return {"zero": _sums(x == 0, starts), "negative": _sums(x < 0, starts), "positive": _sums(x > 0, starts)}


def _of_int(x: Array, starts: Array, counts: Array, names: tuple[str, ...]) -> Columns:
    low, high = np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)
    columns: Columns = {"min": low, "max": high}
    columns |= dict.fromkeys(("nan", "posinf", "neginf"), np.zeros(len(counts), np.int64))
    if not {"mean", "l2norm", "std"}.isdisjoint(names):
        wide = x.astype(np.float64)
        is_small = np.maximum(-low.astype(np.float64), high.astype(np.float64)) < _EXACT_IN_INT64
        exact = np.add.reduceat(x.astype(np.int64, copy=False), starts)
        total = np.where(is_small, exact.astype(np.float64), np.add.reduceat(wide, starts))
        columns |= _moments(wide, total, starts, counts, names)
    return columns | _signs(x, starts, names)


def _of_complex(parts: Array, starts: Array, counts: Array, names: tuple[str, ...]) -> Columns:
    wide = parts.astype(np.float64, copy=False)
    size = np.hypot(wide[:, 0], wide[:, 1])
    mean = [np.add.reduceat(wide[:, i], starts) / counts for i in (0, 1)]
    columns: Columns = {"min": np.minimum.reduceat(size, starts), "max": np.maximum.reduceat(size, starts)}
    columns["mean"] = list(map(list, zip(mean[0].tolist(), mean[1].tolist(), strict=True)))
    columns["l2norm"] = np.sqrt(np.add.reduceat(size * size, starts))
    if "std" in names:
        apart = wide - np.repeat(np.stack(mean, axis=1), counts, axis=0)
        columns["std"] = _std(np.hypot(apart[:, 0], apart[:, 1]), starts, counts)
    columns["nan"] = _sums(np.isnan(parts).any(axis=1), starts)
    columns["posinf"] = _sums(np.isinf(parts).any(axis=1), starts)
    columns["zero"] = _sums(size == 0, starts)
    return columns
