"""The section ``histograms``: of values whose bytes were recorded where their elements lie, in a few coarse bars."""

from __future__ import annotations

from typing import Final

import torch

from ....dump import RankDump, Value
from ....errors import FormatError, MissingDataError
from .columns import Integers, Section

BARS: Final = 16
HIGHEST: Final = 15  # of a bar
MOST_BYTES: Final = 256 << 20  # read for the histograms of one step and rank
_MOST_OF_ONE: Final = 32 << 20


Histogram = tuple[float, float, list[int]]  # least and greatest finite element, bars between


def histograms_section(rank: RankDump, value_ids: Integers) -> bytes | None:
    """Return the section; None where no bytes were recorded. `value_ids` are the ids of all values, ascending."""
    found: dict[int, Histogram] = {}
    left = MOST_BYTES
    recorded = rank.tables.data
    for index, id in enumerate(value_ids.tolist()):
        if id not in recorded:
            continue
        value = rank.value_by_id(id)
        if value.numel < 2 or value.nbytes > min(left, _MOST_OF_ONE):
            continue
        left -= value.nbytes
        made = histogram(value)
        if made is not None:
            found[index] = made
    return _section(found)


def histogram_section(rank: RankDump, index: int) -> bytes | None:
    """Return the section of one value, by its place among all; None where there is nothing to show."""
    value = rank.values[index]
    is_small = value.has_data and value.numel >= 2 and value.nbytes <= MOST_BYTES
    made = histogram(value) if is_small else None
    return None if made is None else _section({index: made})


def _section(found: dict[int, Histogram]) -> bytes | None:
    if not found:
        return None
    section = Section()
    section.add_json("bars", BARS)
    section.add_integers("index", found, delta=True)
    section.add_decimals("low", [low for low, _, _ in found.values()])
    section.add_decimals("high", [high for _, high, _ in found.values()])
    section.add_integers("bar", [bar for _, _, bars in found.values() for bar in bars])
    return section.pack()


def histogram(value: Value, bars: int = BARS) -> Histogram | None:
    """Return least and greatest finite element, and bars between; None where there is nothing to show."""
    try:
        tensor = value.tensor()
    except (MissingDataError, FormatError):  # bytes lost with an interrupted dump
        return None
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.dtype == torch.bool:
        return None
    elements = tensor.detach().reshape(-1).to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    low, high = (float(end) for end in elements.aminmax())
    if not (low - high < torch.inf and abs(low) < torch.inf and abs(high) < torch.inf):
        elements = elements[elements.isfinite()]
        if not len(elements):
            return None
        low, high = (float(end) for end in elements.aminmax())
    if not low < high or high - low == torch.inf:
        return None
    counts = torch.histc(elements, bars, low, high)
    return low, high, (counts * HIGHEST / counts.max()).ceil().long().tolist()
