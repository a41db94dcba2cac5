"""Where one side has NaN or Inf that the other has not, the call that made the first is the cause.

A difference before it that shows by itself (a mask that is another one) is what the NaN came of, and stays the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...dump import RankDump
from ...store.op_names import is_collective
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, Row, place_of
from ..nonfinite.apart import Apart, first_apart

_SHOWS: Final = 0.01  # a relative L2 that no honest precision has, bfloat16 among them
_SAYS_LESS: Final = ("region", "op")  # kinds that say of a call no more than that it is another one
_TINY: Final = 1e-6  # no element is further apart: an epsilon that is missing shows in the NaN alone


def nonfinite_first(
    sides: tuple[RankDump, RankDump], pairs: Sequence[Pair], rows: Sequence[Row], findings: list[Finding]
) -> tuple[list[Finding], list[str]]:
    """Return findings with the first NaN or Inf that one side has alone where it belongs, and notes on it."""
    if not any(row.closeness is not None and row.closeness.nonfinite for row in rows):
        return findings, []
    brought = _brought(rows, 0), _brought(rows, 1)
    apart = first_apart(*sides, {pair.target.id: pair.baseline.id for pair in pairs}, brought)
    if apart is None:
        return findings, []
    finding = _finding(sides, pairs, rows, apart)
    if findings and findings[0].order <= finding.order and _shows(findings[0], finding):
        event = apart.event
        where = f" ({event.source})" if event.source else ""
        return findings, [f"the first NaN or Inf that one side has alone is at {event.name}{where}: {apart}"]
    return [finding, *(other for other in findings if other.row.place != finding.row.place)], []


def _brought(rows: Sequence[Row], side: int) -> set[int]:
    """Return the ids of a side's collectives that brought what all ranks gave: another rank made what is odd in it."""
    right = (row for row in rows if row.status == "within" and row.floor_from == "replay")
    places = (row.baseline if side else row.target for row in right)
    return {place.id for place in places if place is not None and is_collective(place.op)}


def _shows(earlier: Finding, nonfinite: Finding) -> bool:
    """True if what is found earlier says why at the same call, or is a difference that shows by itself."""
    close = earlier.row.closeness
    if earlier.row.place == nonfinite.row.place:
        return earlier.kind not in _SAYS_LESS
    if close is None or close.shape is not None:
        return True
    is_tiny = close.metrics is not None and close.metrics.max_abs < _TINY
    return close.error is not None and close.error > _SHOWS and not is_tiny


def _finding(sides: tuple[RankDump, RankDump], pairs: Sequence[Pair], rows: Sequence[Row], apart: Apart) -> Finding:
    event = apart.event
    slot = event.results[0].name
    is_target = apart.side == "target"
    for row in rows:
        place = row.target if is_target else row.baseline
        if place is not None and place.id == event.call_id and row.slot in (slot, "") and row.status != "unmatched":
            order = 0 if row.target is None else row.target.id
            return Finding("nonfinite", replace(row, status="different"), str(apart), "", (order, 1))
    found = place_of(sides[not is_target].call(event.call_id))
    order = event.call_id
    if not is_target:  # behind what it comes behind in the baseline
        order = max((pair.target.id for pair in pairs if pair.baseline.id <= event.call_id), default=0)
    row = Row(found if is_target else None, None if is_target else found, "", slot, "different")
    return Finding("nonfinite", row, str(apart), "", (order, 1))
