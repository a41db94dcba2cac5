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


def histograms_section(rank: RankDump, value_ids: Integers) -> bytes | None:
    """Return the section; None where no bytes were recorded. `value_ids` are the ids of all values, ascending."""
    section = Section()
    indices: list[int] = []
    ranges: list[tuple[float, float]] = []
    bars: list[int] = []
    left = MOST_BYTES
    recorded = rank.tables.data
    for index, id in enumerate(value_ids.tolist()):
        if id not in recorded:
            continue
        value = rank.value_by_id(id)
        if value.numel < 2 or value.nbytes > min(left, _MOST_OF_ONE):
            continue
        left -= value.nbytes
        found = histogram(value)
        if found is not None:
            indices.append(index)
            ranges.append(found[:2])
            bars += found[2]
    if not indices:
        return None
    section.add_json("bars", BARS)
    section.add_integers("index", indices, delta=True)
    section.add_decimals("low", [low for low, _ in ranges])
    section.add_decimals("high", [high for _, high in ranges])
    section.add_integers("bar", bars)
    return section.pack()


def histogram(value: Value, bars: int = BARS) -> tuple[float, float, list[int]] | None:
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
