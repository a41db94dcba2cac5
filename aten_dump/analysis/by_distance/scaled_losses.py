"""Rows and findings that differ by the ratio of two loss scales alone: they are no difference of the programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...dump import RankDump
from ...store.op_names import UNSCALE_GRADIENTS
from ..distance.value_distance import Factor
from ..evidence.findings import Finding, Place, Row
from ..facts.loss_scales import ScaleRatio, scale_ratio

_NOTE = "differs by the loss scales alone"


def without_scales(
    sides: tuple[RankDump, RankDump], rows: list[Row], findings: list[Finding]
) -> tuple[list[Row], list[Finding]]:
    """Return rows and findings without what the ratio of both loss scales explains."""
    ratio = scale_ratio(*sides)
    if ratio is None:
        return rows, findings
    scaled = _Scaled(sides, ratio)
    left = [finding for finding in findings if not scaled.explains(finding.row)]
    return list(scaled.explained(rows, came_of_them=bool(findings) and not left)), left


class _Scaled:
    """What is scaled: losses and gradients until they are unscaled, and the numbers that the scale itself is."""

    def __init__(self, sides: tuple[RankDump, RankDump], ratio: ScaleRatio) -> None:
        self._ratio = ratio
        self._unscaled = [_first_unscaling(rank) for rank in sides]

    def explained(self, rows: Sequence[Row], *, came_of_them: bool) -> Iterator[Row]:
        """Yield rows; `came_of_them`: nothing else was found, so what still differs is what those gradients led to."""
        for row in rows:
            is_scaled = row.status == "different" and (self.explains(row) or (came_of_them and self._is_applied(row)))
            yield replace(row, status="within", ratio=None, note=_NOTE) if is_scaled else row

    def explains(self, row: Row) -> bool:
        """True where the difference is that of the scales, or an unscaled gradient's that is rounded otherwise."""
        close = row.closeness
        if close is None or close.shape is not None or close.nonfinite:
            return False
        if row.place.op.startswith(UNSCALE_GRADIENTS) and self._ratio.explains_unscaled(close.error):
            return True
        measured = close.metrics or close.factor
        if measured is None:
            return False
        one_element = measured.count == 1
        if not (one_element or all(map(self._is_before, (row.target, row.baseline), self._unscaled, (row, row)))):
            return False
        if isinstance(measured, Factor):
            return self._ratio.explains_statistics(measured)
        return self._ratio.explains(close.error, measured.cosine, one_element=one_element)

    def _is_applied(self, row: Row) -> bool:
        close = row.closeness
        is_known = row.place.phase == "optimizer" and close is not None and not close.nonfinite
        return is_known and close is not None and self._ratio.explains_unscaled(close.error)

    @staticmethod
    def _is_before(place: Place | None, unscaled: int | None, row: Row) -> bool:
        if place is None:
            return True
        if unscaled is None:
            return place.phase != "optimizer"
        return place.id < unscaled or (place.id == unscaled and row.slot.startswith("input"))


def _first_unscaling(rank: RankDump) -> int | None:
    """Return the id of the call that unscales gradients first, None without one."""
    calls = rank.calls.filter(op=UNSCALE_GRADIENTS, kind="aten")
    return next((call.id for call in calls if call.op.startswith(UNSCALE_GRADIENTS)), None)
