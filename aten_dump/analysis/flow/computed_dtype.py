"""The dtype in which a side computes: that of most of its products, or its only one."""

from __future__ import annotations

from collections import Counter

import torch

from ...dump import Call, RankDump
from ..rerun.rounding_error import is_product


def computed_dtype(rank: RankDump) -> torch.dtype | None:
    """Return the dtype of most products of the forward, or the only floating one of all calls, or None."""
    counts = _products(rank)
    if not counts:
        values = (value for call in rank.calls.filter(kind="aten") for _, value in call.all_values())
        counts = Counter({value.dtype for value in values if value.is_floating})
    return _most(counts)


def is_of_most_products(rank: RankDump, dtype: torch.dtype) -> bool:
    """Return True if most products of the forward are computed in a dtype: then the program computes in it."""
    return _most(_products(rank)) == dtype


def calls_by_dtype(rank: RankDump) -> dict[torch.dtype, list[Call]]:
    """Return the aten calls that return a floating tensor, by the dtype of the first one."""
    found: dict[torch.dtype, list[Call]] = {}
    for call in rank.calls.filter(kind="aten"):
        value = next((value for _, value in call.output_values()), None)
        if value is not None and value.is_floating and not value.dtype.is_complex:
            found.setdefault(value.dtype, []).append(call)
    return found


def dtype_text(dtype: torch.dtype) -> str:
    """Return ``"bfloat16"``, as dumps name dtypes."""
    return str(dtype).removeprefix("torch.")


def _most(counts: Counter[torch.dtype]) -> torch.dtype | None:
    """Return the dtype with more than half of the counts."""
    return next((dtype for dtype in counts if counts[dtype] > counts.total() - counts[dtype]), None)


def _products(rank: RankDump) -> Counter[torch.dtype]:
    """Count the products of the forward by their dtypes."""
    counts: Counter[torch.dtype] = Counter()
    for dtype, calls in calls_by_dtype(rank).items():
        counts[dtype] = sum(call.phase == "forward" and is_product(call.op) for call in calls)
    return +counts
