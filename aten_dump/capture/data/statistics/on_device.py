"""Statistics of a tensor on a device: reduced there, finished on the host.

Theory of operation
    A tensor is reduced on its device to its min and max, counts, and sums over at most 256 rows in its own precision
    (float32 at least). `finish` makes the statistics of these results, summing rows in float64; so devices without
    float64 do as well. With Triton, `triton_kernel` makes all of a value's results in one pass over its memory.

    Sums are float64 on devices that have it; else they are float32 within a row, as accurate as `one_tensor` is for
    large tensors, but without another way for elements whose squares float32 cannot hold: their l2norm is inf.
    Integers beyond 2**31 have their mean from such sums. std is put together of the rows' means and variances.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from ...devices import has_float64

MOST_ROWS: Final = 256
FLOATS: Final = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
FUSED: Final = FLOATS - {torch.float64}
INTS: Final = frozenset((torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool))
_EXACT_IN_INT64: Final = 1 << 31
_COUNTS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "nan": lambda x: x != x,
    "posinf": lambda x: x == math.inf,
    "neginf": lambda x: x == -math.inf,
    "zero": lambda x: x == 0,
    "negative": lambda x: x < 0,
    "positive": lambda x: x > 0,
}
Reduced = dict[str, torch.Tensor]  # name of a result -> one or more numbers, on the device
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@functools.lru_cache(maxsize=4096)
def rows_of(count: int) -> int:
    """Return in how many rows of the same length to cut so many elements."""
    most = min(MOST_ROWS, max(1, count // 1024))
    return next(n for n in range(most, 0, -1) if count % n == 0)


def reduce_floats(flat: torch.Tensor, names: tuple[str, ...]) -> Reduced:
    """Reduce floating elements on their device. Call inside `quiet()`."""
    wide = torch.float64 if flat.dtype == torch.float64 or has_float64(flat.device.type) else torch.float32
    low, high = torch.aminmax(flat)
    found = {"low": low.to(wide), "high": high.to(wide)}
    rows = flat.view(rows_of(flat.numel()), -1)
    if "std" in names:
        found["var"] = torch.var(rows.to(wide), dim=1, correction=0)
    if "std" in names or "mean" in names:
        found["sum"] = rows.sum(dim=1, dtype=wide)
    if "l2norm" in names:
        found["norm"] = torch.linalg.vector_norm(rows, dim=1, dtype=wide)
    return found | {name: count(flat).sum() for name, count in _COUNTS.items() if name in names}


def reduce_ints(flat: torch.Tensor, names: tuple[str, ...]) -> Reduced:
    """Reduce integers on their device. Call inside `quiet()`."""
    low, high = torch.aminmax(flat)
    found = {"low": low.to(torch.int64), "high": high.to(torch.int64), "total": flat.sum(dtype=torch.int64)}
    if not {"mean", "l2norm", "std"}.isdisjoint(names):
        wide = torch.float64 if has_float64(flat.device.type) else torch.float32
        rows = flat.view(rows_of(flat.numel()), -1).to(wide)
        found["var"] = torch.var(rows, dim=1, correction=0)
        found["sum"] = rows.sum(dim=1)
        found["norm"] = torch.linalg.vector_norm(rows, dim=1)
    signs = ("zero", "negative", "positive")
    return found | {name: _COUNTS[name](flat).sum() for name in signs if name in names}


def reduce_fused(flat: torch.Tensor) -> Reduced:
    """Reduce floating elements in one pass, all names at once."""
    from . import triton_kernel  # imports Triton

    return {"fused": triton_kernel.reduce(flat.contiguous())}


def _unfused(count: int, columns: Array) -> dict[str, Array]:
    from .triton_kernel import RESULTS

    reduced: dict[str, Array] = dict(zip(RESULTS, columns.reshape(len(RESULTS), -1), strict=True))
    others = reduced["nan"].sum() + reduced["zero"].sum() + reduced["negative"].sum()
    reduced["positive"] = np.array([count - others])
    return reduced


def finish(count: int, reduced: dict[str, Array], names: tuple[str, ...]) -> list[Any]:
    """Return the statistics `names` of `count` elements from what they were reduced to."""
    with np.errstate(all="ignore"):
        return _finish(count, reduced if "fused" not in reduced else _unfused(count, reduced["fused"]), names)


def _finish(count: int, reduced: dict[str, Array], names: tuple[str, ...]) -> list[Any]:
    low, high = reduced["low"].min().item(), reduced["high"].max().item()
    found: dict[str, Any] = {"count": count, "min": low, "max": high, "nan": 0, "posinf": 0, "neginf": 0}
    if "sum" in reduced:
        total: float = reduced["sum"].astype(np.float64).sum().item()
        if "total" in reduced and max(-low, high) < _EXACT_IN_INT64:
            total = reduced["total"].item()
        found["mean"] = total / count
    if "norm" in reduced:
        found["l2norm"] = math.sqrt(np.square(reduced["norm"].astype(np.float64)).sum().item())
    if "var" in reduced and count > 1:
        found["std"] = _std(count, reduced)
    found |= {name: int(reduced[name].sum().item()) for name in _COUNTS if name in reduced}
    if found["nan"]:
        found["min"] = found["max"] = math.nan
    return [found.get(name) for name in names]


def _std(count: int, reduced: dict[str, Array]) -> float:
    """Put together the spread of all elements of that within the rows and that of the rows' means."""
    each = count // len(reduced["var"])
    means = reduced["sum"].astype(np.float64) / each
    within = reduced["var"].astype(np.float64).sum().item() * each
    between = np.square(means - means.mean()).sum().item() * each
    return math.sqrt((within + between) / (count - 1))
