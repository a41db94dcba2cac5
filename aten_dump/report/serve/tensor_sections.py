"""Sections of a slice: a heat map with a histogram, and a table of elements."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from ..html.payload.columns import Section
from ..html.payload.histograms import counted
from ..units import format_number

MOST_CELLS: Final = 256  # of the map, in each direction
BARS: Final = 64
WINDOW: Final = (24, 12)  # rows and columns of the table
MIDDLE: Final = 127  # the code of zero; 0 and 254 are the ends of the scale
NONFINITE: Final = 255
_SAMPLE: Final = 1 << 20  # elements that the limit of the scale is found from


def map_section(part: Tensor, *, share: float, is_distance: bool) -> bytes:
    """Return a map and a histogram of a slice.

    Args:
        part: numbers, ``[rows, columns]``.
        share: of the elements that are within the ends of the scale; 1 for all.
        is_distance: the numbers are counts from 0 up that go over many powers of two.
    """
    section = Section()
    finite = part[part.isfinite()].double()
    limit = _limit(finite, share)
    section.add_json("shape", list(part.shape))
    section.add_json("limit", format_number(limit))
    section.add_json("facts", {name: format_number(number) for name, number in _facts(part, finite).items()})
    codes = _codes(part, limit, is_distance)
    section.add_json("cells", list(codes.shape))
    section.add_integers("code", codes.reshape(-1).numpy().astype("int64"))
    low, high, bars = counted(finite, BARS)
    section.add_json("low", format_number(low))
    section.add_json("high", format_number(high))
    section.add_integers("bar", bars)
    return section.pack()


def _limit(finite: Tensor, share: float) -> float:
    """Return the absolute value at the ends of the scale."""
    if not len(finite):
        return 1.0
    size = finite.abs()
    if share < 1:
        size = size[:: -(-len(size) // _SAMPLE)]
        limit = float(size.kthvalue(max(1, round(share * len(size)))).values)
        if limit > 0:
            return limit
    return float(finite.abs().max()) or 1.0


def _facts(part: Tensor, finite: Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {"elements": part.numel()}
    if len(finite):
        low, high = (float(end) for end in finite.aminmax())
        facts |= {"min": low, "max": high, "mean": float(finite.mean()), "l2norm": float(finite.norm())}
        facts |= {"zero": int((finite == 0).sum())}
    facts |= {"NaN": int(part.isnan().sum()), "+Inf": int(part.isposinf().sum()), "-Inf": int(part.isneginf().sum())}
    return {name: number for name, number in facts.items() if number or name not in ("zero", "NaN", "+Inf", "-Inf")}


def _codes(part: Tensor, limit: float, is_distance: bool) -> Tensor:
    """Return codes of colours, of each cell that of the element of greatest size in it; NaN and Inf come first."""
    if part.numel() == 0:
        return torch.zeros(part.shape, dtype=torch.int64, device=part.device)
    is_finite = part.isfinite()
    scaled = torch.where(is_finite, part.double(), 0.0)
    if is_distance:
        scaled = scaled.abs().log1p() / math.log1p(limit)
    else:
        scaled = scaled / limit
    size = torch.where(is_finite, scaled.abs().clamp(max=1.0), 2.0)
    cells = tuple(min(length, MOST_CELLS) for length in part.shape)
    greatest, at = adaptive_max_pool2d(size.float()[None], cells, return_indices=True)
    sign = torch.where(scaled.reshape(-1)[at.reshape(-1)] < 0, -1.0, 1.0).reshape(cells)
    codes = (greatest[0] * sign * MIDDLE).round().long() + MIDDLE
    return codes.masked_fill(greatest[0] > 1.5, NONFINITE)


def elements_section(part: Tensor, row: int, column: int) -> bytes:
    """Return a table of the elements from a place on, in the digits in which they are shown everywhere."""
    section = Section()
    window = part[row : row + WINDOW[0], column : column + WINDOW[1]]
    section.add_json("shape", list(part.shape))
    section.add_json("from", [row, column])
    section.add_json("rows", [[format_number(number) for number in line] for line in window.tolist()])
    return section.pack()
