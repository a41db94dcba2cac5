"""How far a wrong result spreads: what is computed from it is the same function, but has other numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ...dump import Value
from ..evidence.findings import Place, Row
from ..flow.data_flow import DataFlow


class Spread:
    """The calls of one side that wrong results reach."""

    def __init__(self, flow: DataFlow, wrong: Collection[int]) -> None:
        """Walk on from some calls.

        Args:
            flow: of the side.
            wrong: ids of the calls whose results are wrong.
        """
        self._flow = flow
        self._reached = set(wrong)
        for call in flow.calls() if wrong else ():
            if call.id not in self._reached and any(self._is_wrong(value) for _, value in flow.reads(call)):
                self._reached.add(call.id)

    def reaches(self, place: Place | None, slot: str) -> bool:
        """Return True if a result of a call, of any kind, was computed from a wrong one."""
        if place is None or not self._reached:
            return False
        if place.kind == "aten":
            return place.id in self._reached
        value = dict(self._flow.rank.call(place.id).output_values()).get(slot)
        return value is not None and self._is_wrong(value)

    def _is_wrong(self, value: Value) -> bool:
        writer = self._flow.writer(value)
        return writer is not None and writer[0].id in self._reached


def spread(rows: Sequence[Row], sides: tuple[Spread, Spread]) -> list[Row]:
    """Return the rows, with those as different that a wrong result reaches and rounding does not explain."""
    return [
        replace(row, status="different")
        if row.status == "within"
        and row.closeness is not None
        and (row.closeness.error or 0.0) > (row.floor or 0.0)
        and (sides[0].reaches(row.target, row.slot) or sides[1].reaches(row.baseline, row.slot))
        else row
        for row in rows
    ]
