"""The section ``histograms``: of values whose bytes were recorded where their elements lie, in a few coarse bars.

Theory of operation
    Of one step and rank no more than `MOST_BYTES` are read. Where there are more, small values are read whole, and of
    each other one the same number of bytes: blocks evenly spread over it. Its histogram is then that of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ....analysis.distance.element_chunks import ElementReader, common_order, lies_densely
from ....dump import RankDump, Value
from ....errors import FormatError, MissingDataError
from ....torch_names import DTYPES_WITHOUT_NUMBERS
from .columns import Integers, Section

BARS: Final = 16
HIGHEST: Final = 15  # of a bar
MOST_BYTES: Final = 256 << 20  # read for the histograms of one step and rank
LEAST_BYTES: Final = 4096  # read of a value, however many there are
_MOST_SCATTERED: Final = 32 << 20  # of a value that cannot be read in blocks
_BLOCKS: Final = 64
_WITHOUT_BARS: Final = DTYPES_WITHOUT_NUMBERS | {torch.bool}


class Histogram(NamedTuple):
    """Where elements lie."""

    low: float  # least and greatest finite element
    high: float
    bars: list[int]  # 0 to `HIGHEST`
    sampled: int = 0  # elements that were looked at; 0 for all


def histograms_section(rank: RankDump, value_ids: Integers) -> bytes | None:
    """Return the section; None where no bytes were recorded. `value_ids` are the ids of all values, ascending."""
    recorded = rank.tables.data
    places = [(index, id) for index, id in enumerate(value_ids.tolist()) if id in recorded]
    most = _most_of_each([rank.value_by_id(id).nbytes for _, id in places])
    made = ((index, histogram(rank.value_by_id(id), most)) for index, id in places)
    return _section({index: found for index, found in made if found is not None})


def _most_of_each(sizes: Sequence[int]) -> int:
    """Return how many bytes may be read of each value, so that all together are no more than allowed."""
    left = MOST_BYTES
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return max(share, LEAST_BYTES)
        left -= size
    return MOST_BYTES


def histogram_section(rank: RankDump, index: int) -> bytes | None:
    """Return the section of one value, by its place among all; None where there is nothing to show."""
    value = rank.values[index]
    made = histogram(value, MOST_BYTES) if value.has_data else None
    return None if made is None else _section({index: made})


def _section(found: dict[int, Histogram]) -> bytes | None:
    if not found:
        return None
    section = Section()
    section.add_json("bars", BARS)
    section.add_integers("index", found, delta=True)
    section.add_decimals("low", [one.low for one in found.values()])
    section.add_decimals("high", [one.high for one in found.values()])
    section.add_integers("bar", [bar for one in found.values() for bar in one.bars])
    section.add_integers("sampled", [one.sampled for one in found.values()])
    return section.pack()


def histogram(value: Value, most_bytes: int = MOST_BYTES, bars: int = BARS) -> Histogram | None:
    """Return where the elements of a value lie; None where there is nothing to show.

    Args:
        value: whose bytes were recorded.
        most_bytes: to read of it.
        bars: how many.
    """
    is_whole = value.nbytes <= most_bytes
    if value.numel < 2 or (not is_whole and not lies_densely(value) and value.nbytes > _MOST_SCATTERED):
        return None
    try:
        tensor = value.tensor() if is_whole or not lies_densely(value) else _sample(value, most_bytes)
    except (MissingDataError, FormatError):  # bytes lost with an interrupted dump
        return None
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.dtype in _WITHOUT_BARS:
        return None
    elements = tensor.detach().reshape(-1).to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    if not all(math.isfinite(float(end)) for end in elements.aminmax()):
        elements = elements[elements.isfinite()]
    low, high, counts = counted(elements, bars)
    if len(counts) < 2:
        return None
    highest = max(counts)
    heights = [-(-count * HIGHEST // highest) for count in counts]
    return Histogram(low, high, heights, tensor.numel() if tensor.numel() < value.numel else 0)


def _sample(value: Value, most_bytes: int) -> Tensor:
    """Read blocks that are evenly spread over a value, the first and the last elements among them."""
    reader = ElementReader(value, common_order(value, value), most_bytes)
    size = max(1, most_bytes // value.dtype.itemsize // _BLOCKS)
    last = value.numel - size
    starts = [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return torch.cat([reader.read(start, start + size) for start in starts])


def counted(finite: Tensor, bars: int) -> tuple[float, float, list[int]]:
    """Return least and greatest of some elements, and how many lie in each part between; in one where all are equal."""
    if not len(finite):
        return 0.0, 0.0, []
    low, high = (float(end) for end in finite.aminmax())
    if not low < high or high - low == torch.inf:
        return low, high, [len(finite)]
    return low, high, torch.histc(finite, bars, low, high).long().tolist()
