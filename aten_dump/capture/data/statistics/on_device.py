"""Statistics of a tensor on a device: reduced there, finished on the host.

Theory of operation
    A tensor is reduced on its device to its min and max, counts, and sums over at most 256 rows in its own precision
    (float32 at least). `finish` makes the statistics of these results, summing rows in float64; so devices without
    float64 do as well. (With Triton one pass over a value's memory does for most: `fused_results`.)

    Sums are float64 on devices that have it; else they are float32 within a row, as accurate as `one_tensor` is for
    large tensors, but without another way for elements whose squares float32 cannot hold: their l2norm is inf.
    Sums of integers are exact. std is put together of the rows' means and variances.

    Masks, wider copies and elements put in a row take memory of the device. A large tensor is therefore reduced piece
    by piece, and what that takes does not grow with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from ....config import SIGNS
from ...devices import has_float64
from ...memory.geometry import covers
from .rows import row_lengths, rows_of

MOST_ELEMENTS: Final = 2 << 20  # of a piece: up to 8 bytes each to put them in a row, 4 to widen them and 1 for a mask
FLOATS: Final = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
FUSED: Final = FLOATS - {torch.float64} | {torch.int8, torch.int16, torch.uint8, torch.bool}  # float32 holds them
INTS: Final = frozenset((torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool))
_WRAP: Final = 1 << 64
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


def pieces(tensor: torch.Tensor, most_elements: int) -> Iterator[torch.Tensor]:
    """Yield all elements of a tensor, in any order, as tensors of one dimension. Call inside `quiet()`."""
    if covers(tensor):
        yield from tensor.as_strided((tensor.numel(),), (1,)).split(most_elements)
    elif tensor.numel() <= most_elements:
        yield tensor.reshape(-1)
    else:
        longest = max(range(tensor.dim()), key=tensor.size)
        for part in tensor.split(-(-tensor.size(longest) // 2), longest):
            yield from pieces(part, most_elements)


def together(parts: list[Reduced]) -> Reduced:
    """Return the results of several pieces as those of one tensor. Call inside `quiet()`."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name].reshape(-1) for part in parts]) for name in parts[0]}


def reduce_tensor(tensor: torch.Tensor, names: tuple[str, ...]) -> tuple[list[int], Reduced]:
    """Reduce a tensor of FLOATS or INTS that is not empty where it is; return the lengths of its rows, and the results.

    Call inside `quiet()`.
    """
    rows, parts = [], []
    for flat in pieces(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, MOST_ELEMENTS):
        parts.append((reduce_floats if tensor.dtype in FLOATS else reduce_ints)(flat.resolve_neg(), names))
        rows += row_lengths(flat.numel())
    return rows, together(parts)


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
    return found | {name: _COUNTS[name](flat).sum() for name in _COUNTS if name in names and name in SIGNS}


def finish(lengths: list[int], reduced: dict[str, Array], names: tuple[str, ...]) -> list[Any]:
    """Return the statistics `names` from what elements were reduced to, in rows of these lengths."""
    with np.errstate(all="ignore"):
        return _finish(lengths, reduced, names)


def _finish(lengths: list[int], reduced: dict[str, Array], names: tuple[str, ...]) -> list[Any]:
    count = sum(lengths)
    low, high = reduced["low"].min().item(), reduced["high"].max().item()
    found: dict[str, Any] = {"count": count, "min": low, "max": high, "nan": 0, "posinf": 0, "neginf": 0}
    if "sum" in reduced:
        total: float = reduced["sum"].astype(np.float64).sum().item()
        if "total" in reduced:  # exact, but for whole multiples of 2**64, of which the other sum knows how many
            wrapped = reduced["total"].sum().item()
            total = wrapped + round((total - wrapped) / _WRAP) * _WRAP
        found["mean"] = total / count
    if "norm" in reduced:
        found["l2norm"] = math.sqrt(np.square(reduced["norm"].astype(np.float64)).sum().item())
    if "var" in reduced and count > 1:
        found["std"] = _std(np.array(lengths), reduced)
    found |= {name: int(reduced[name].sum().item()) for name in _COUNTS if name in reduced}
    if found["nan"]:
        found["min"] = found["max"] = math.nan
    return [found.get(name) for name in names]


def _std(lengths: Array, reduced: dict[str, Array]) -> float:
    """Put together the spread of all elements of that within the rows and that of the rows' means."""
    count, sums = lengths.sum().item(), reduced["sum"].astype(np.float64)
    means, mean = sums / lengths, sums.sum() / count
    within = (reduced["var"].astype(np.float64) * lengths).sum().item()
    between = (np.square(means - mean) * lengths).sum().item()
    return math.sqrt((within + between) / (count - 1))
