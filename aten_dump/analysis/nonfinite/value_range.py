"""What is known of the elements of a recorded value: from its statistics, else from its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ...dump import RankDump, Value
from ...dump.known_tables import once_for_alike
from ...errors import FormatError, MissingDataError
from ...geometry import once
from ...store import records
from ...torch_names import DTYPES, DTYPES_WITHOUT_NUMBERS


@dataclass(frozen=True, slots=True)
class Contents:
    """Counts of non-finite elements, and the range of the finite ones as far as it is known."""

    count: int  # elements
    nan: int
    posinf: int
    neginf: int
    low: float | None  # least finite element; None where it is not known or there is none
    high: float | None

    @property
    def finite(self) -> bool:
        return not (self.nan or self.posinf or self.neginf)


class ContentsTable:
    """The contents of values of one step and rank, each found once."""

    def __init__(self, rank: RankDump) -> None:
        self._rank = rank
        self._known: dict[int, Contents | None] = {}
        self._statistics = _are_enough(rank)

    def of(self, value: Value) -> Contents | None:
        """Return what is known of a value; None where nothing is: undefined, opaque, or not kept."""
        if value.id not in self._known:
            self._known[value.id] = self._find(value)
        return self._known[value.id]

    def _find(self, value: Value) -> Contents | None:
        if not value.is_floating:
            return Contents(value.numel, 0, 0, 0, None, None)
        if value.undefined:
            return None
        stats = value.stats
        if stats is not None and self._statistics:
            return _from_statistics(value, dict(stats))
        if not value.has_data:
            return None
        try:
            tensor = value.tensor()
        except (MissingDataError, FormatError):  # bytes lost with an interrupted dump: nothing is known
            return None
        found = _from_tensor(tensor)
        is_sampled = tensor.layout is torch.strided and tensor.numel() < value.numel
        return None if is_sampled and found.finite else found


def greatest_of(dtype: str) -> float:
    """Return the greatest finite number of a dtype; infinity where it has none."""
    found = DTYPES.get(dtype)
    if found is None or not (found.is_floating_point or found.is_complex):
        return math.inf
    if found in DTYPES_WITHOUT_NUMBERS:
        return math.inf
    return float(torch.finfo(found).max)


_COUNTS: Final = ("nan", "posinf", "neginf")
_ENDS: Final = ("min", "max")


def _are_enough(rank: RankDump) -> bool:
    """Return True if the statistics that were recorded say whether a value is finite."""
    statistics = set(rank.config.get("statistics", ()))
    return statistics.issuperset(_ENDS) or statistics.issuperset(_COUNTS)


def all_are_finite(rank: RankDump, near: float) -> bool:
    """Return True if statistics alone say that every value is finite and not `near` the greatest of its dtype."""
    greatest = _greatest(rank)
    names = list(rank.config.get("statistics", ()))
    if greatest is None:
        return False
    try:
        found = np.array(rank.tables.statistics.in_order(), np.float64).reshape(len(greatest), len(names))
    except (ValueError, TypeError, OverflowError):  # complex ones, and fewer than were to be recorded
        return False
    counts = found[:, [at for at, name in enumerate(names) if name in _COUNTS]]
    ends = np.abs(found[:, [at for at, name in enumerate(names) if name in _ENDS]])
    is_counted = counts.shape[1] == len(_COUNTS)  # else what is not defined may be NaN
    limits = near * greatest[:, None]
    return not (counts > 0).any() and bool((~(ends >= limits) if is_counted else ends < limits).all())


@once_for_alike
def _greatest(rank: RankDump) -> NDArray[np.float64] | None:
    """Return the greatest number of the dtype that each statistic is of; None where bytes have a say as well."""
    tables = rank.tables
    known = tables.statistics
    greatest = np.full(len(known.in_order()), math.inf)
    for value in rank.values:
        if value.is_floating and not value.undefined:
            at = known.position(tables.same_as(value.id, records.SAME_STATISTICS, known))
            if at >= 0:
                greatest[at] = min(greatest[at], greatest_of(value.dtype_name))
            if value.has_data and (at < 0 or not _are_enough(rank)):
                return None
    return greatest


def _from_statistics(value: Value, stats: dict[str, Any]) -> Contents:
    low, high = stats.get("min"), stats.get("max")
    nan, posinf, neginf = (stats.get(name) for name in _COUNTS)
    if nan is None:
        nan = int(_is_nan(low) or _is_nan(high))
    if posinf is None:
        posinf = int(high == math.inf)
    if neginf is None:
        neginf = int(low == -math.inf)
    return Contents(value.numel, nan, posinf, neginf, _finite(low), _finite(high))


def _is_nan(number: Any) -> bool:
    return isinstance(number, float) and math.isnan(number)


def _finite(number: Any) -> float | None:
    return float(number) if isinstance(number, (int, float)) and math.isfinite(number) else None


def _from_tensor(tensor: torch.Tensor) -> Contents:
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    seen = tensor.numel()
    tensor = once(tensor).resolve_conj().resolve_neg()
    times = seen // max(tensor.numel(), 1)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() == 1:
        tensor = tensor.float()
    nan = posinf = neginf = 0
    low, high = math.inf, -math.inf
    for chunk in tensor.reshape(-1).split(1 << 20):
        least, most = (float(x) for x in torch.aminmax(chunk)) if chunk.numel() else (math.inf, -math.inf)
        if not (math.isfinite(least) and math.isfinite(most)) and chunk.numel():
            nan += int(chunk.isnan().sum())
            posinf += int((chunk == math.inf).sum())
            neginf += int((chunk == -math.inf).sum())
            chunk = chunk[chunk.isfinite()]
            least, most = (float(x) for x in torch.aminmax(chunk)) if chunk.numel() else (math.inf, -math.inf)
        low, high = min(low, least), max(high, most)
    return Contents(tensor.numel() * times, nan * times, posinf * times, neginf * times, _finite(low), _finite(high))
