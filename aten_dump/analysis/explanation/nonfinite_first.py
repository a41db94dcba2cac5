"""If only one side has NaN or Inf, the call that made the first one is the cause.

If an earlier difference is visible by itself (another mask), the NaN came from that, and that stays the cause. A NaN of
unwritten memory is a note: a library may learn shapes from a forward over such memory. What an end has of it is found
by the evaluation.
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
from ..nonfinite.explanations import OF_UNWRITTEN

_SHOWS: Final = 0.01  # a relative L2 above that of any precision, bfloat16 included
_SAYS_LESS: Final = ("region", "op")  # kinds that say only that the call is another one
_TINY: Final = 1e-6  # no element differs by more: a missing epsilon shows only in the NaN


def nonfinite_first(
    sides: tuple[RankDump, RankDump], pairs: Sequence[Pair], rows: Sequence[Row], findings: list[Finding]
) -> tuple[list[Finding], list[str]]:
    """Return findings with the first NaN or Inf that only one side has, at its place, and notes on it."""
    if not any(row.closeness is not None and row.closeness.nonfinite for row in rows):
        return findings, []
    brought = _brought(rows, 0), _brought(rows, 1)
    apart = first_apart(*sides, {pair.target.id: pair.baseline.id for pair in pairs}, brought)
    if apart is None:
        return findings, []
    finding = _finding(sides, pairs, rows, apart)
    event = apart.event
    is_earlier = bool(findings) and findings[0].order <= finding.order and _shows(findings[0], finding)
    if is_earlier or event.why == OF_UNWRITTEN:
        where = f" ({event.source})" if event.source else ""
        return findings, [f"the first NaN or Inf that one side has alone is at {event.name}{where}: {apart}"]
    return [finding, *(other for other in findings if other.row.place != finding.row.place)], []


def _brought(rows: Sequence[Row], side: int) -> set[int]:
    """Return the ids of a side's collectives that brought correct results: a NaN in them is another rank's."""
    right = (row for row in rows if row.status == "within" and row.floor_from == "replay")
    places = (row.baseline if side else row.target for row in right)
    return {place.id for place in places if place is not None and is_collective(place.op)}


def _shows(earlier: Finding, nonfinite: Finding) -> bool:
    """True if an earlier finding explains the same call, or is a difference that is visible by itself."""
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
    if not is_target:  # after the finding that it follows in the baseline
        order = max((pair.target.id for pair in pairs if pair.baseline.id <= event.call_id), default=0)
    row = Row(found if is_target else None, None if is_target else found, "", slot, "different")
    return Finding("nonfinite", row, str(apart), "", (order, 1))
