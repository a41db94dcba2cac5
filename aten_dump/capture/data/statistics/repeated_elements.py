"""Statistics of expanded tensors, whose elements lie in memory once and are seen many times, from those of each once.

A mask of 4 MB that is expanded over heads and samples is a tensor of gigabytes: nobody makes that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ....config import SIGNS

Number = Any  # see `one_tensor`


def seen_once(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor without the dimensions along which it repeats its elements, and how often it has each. Call
    inside `quiet()`.
    """
    times = 1
    if tensor.numel() and not tensor.is_quantized:  # whose scales may go along a dimension
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and size > 1:
                tensor = tensor.narrow(dim, 0, 1)
                times *= size
    return tensor, times


def of_repeated(found: Mapping[str, Number], times: int) -> dict[str, Number]:
    """Return all statistics of elements that are seen so many times, twice at least, from those of each seen once."""
    many = dict(found)
    count: int = found["count"]
    for name in ("count", "nan", "posinf", "neginf", *SIGNS):
        if found[name] is not None:
            many[name] = found[name] * times
    if found["l2norm"] is not None:
        many["l2norm"] = found["l2norm"] * math.sqrt(times)
    if found["std"] is not None:
        many["std"] = found["std"] * math.sqrt((count - 1) * times / (count * times - 1))
    elif found["max"] is not None:  # one element, which is no way from itself; but for NaN and Inf, which are NaN
        many["std"] = 0.0 * abs(found["max"])
    return many
