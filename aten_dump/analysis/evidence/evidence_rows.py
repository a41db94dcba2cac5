"""Collects rows and findings while two recordings are walked, under the names that evidence has for calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dump import Call
from ..distance.value_distance import Closeness
from ..pairing.alignment import How
from .findings import Finding, FindingKind, Place, Row, Status, place_of
from .judgement import Inputs, Judgement


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of the target and its counterpart."""

    target: Call
    baseline: Call
    how: How


@dataclass(slots=True)
class EvidenceRows:
    """Rows and findings, in the order in which they were found."""

    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _places: dict[tuple[int, int], Place] = field(default_factory=dict)

    def place(self, call: Call) -> Place:
        """Return a call as evidence names it."""
        key = id(call.rank), call.id
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = place_of(call)
        return found

    def known(self, pair: Pair, slot: str, close: Closeness, status: Status, note: str = "") -> None:
        """Add a row of a value that was judged before."""
        self.rows.append(Row(*self._both(pair), pair.how, slot, status, close, note=note or close.reason))

    def judged(self, pair: Pair, slot: str, close: Closeness, said: Judgement, inputs: Inputs | None = None) -> Row:
        """Add a row of what was judged here, and return it."""
        amplified = None
        if inputs is not None and inputs.error and close.error is not None:
            amplified = close.error / inputs.error
        own = said.own.target.error if said.own else None
        row = Row(
            *self._both(pair), pair.how, slot, said.status, close, said.floor, said.floor_from,
            said.ratio, own, amplified, said.note or close.reason, said.reason, said.seen,
        )  # fmt: skip
        self.rows.append(row)
        return row

    def blame(self, kind: FindingKind, row: Row, text: str, inputs: str, order: tuple[int, int]) -> None:
        """Add a finding about the pair of calls of a row."""
        self.findings.append(Finding(kind, row, text, inputs, order))

    def _both(self, pair: Pair) -> tuple[Place, Place]:
        return self.place(pair.target), self.place(pair.baseline)


def said_of(inputs: Inputs) -> str:
    """Return what is known of the inputs, as a clause."""
    apart = f"agree within noise (up to {inputs.error:.2g} apart)" if inputs.error else "agree as far as their data go"
    texts = {
        "same": "its inputs are bitwise equal",
        "within": f"its inputs {apart}",
        "unknown": "its inputs could not be compared",
    }
    return texts.get(inputs.worst, "its inputs differ already, but its own error is too large for them")
