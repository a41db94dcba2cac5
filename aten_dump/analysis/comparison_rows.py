"""The table of a comparison, a row for each slot of each pair of calls: its columns, and rows as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ..dump.dataframes.call_columns import Types, facts
from ..dump.dataframes.libraries import LIBRARIES
from .distance.metrics import ULP_EDGES
from .evidence.findings import Row
from .pairing.alignment import HOW_TEXTS

ULP_COLUMNS: Final = (*(f"ulp_to_{edge}" for edge in ULP_EDGES), "ulp_beyond")
_SIDES: Final[Types] = {"target": "text", "baseline": "text", "matched_by": "text"}  # call names
_VERDICT: Final[Types] = {
    "status": "text", "level": "text", "bitwise": "bool", "error": "float", "floor": "float", "floor_from": "text",
    "ratio": "float", "own_error": "float", "amplification": "float", "target_dtype": "text", "baseline_dtype": "text",
    "target_shape": "ints", "baseline_shape": "ints", "target_layout": "text", "baseline_layout": "text",
}  # fmt: skip
_MEASURED: Final[Types] = {
    "count": "int", "compared_as": "text", "rel_l2": "float", "max_abs": "float", "max_abs_at": "ints",
    "max_rel": "float", "max_rel_at": "ints", "max_scaled": "float", "cosine": "float", "rmse": "float",
    "exact": "float", "within_1e3": "float", "within_5e3": "float", **dict.fromkeys(ULP_COLUMNS, "int"),
    "nonfinite": "int", "nonfinite_at": "ints", "nonfinite_values": "texts", "target_nonfinite": "int",
    "baseline_nonfinite": "int", "note": "text",
}  # fmt: skip
COLUMN_TYPES: Final[Types] = {
    **facts("step", "rank"), **_SIDES, **facts("kind", "phase", "op", "module", "source", "slot"), **_VERDICT,
    **_MEASURED,
}  # fmt: skip
COLUMNS: Final = tuple(COLUMN_TYPES)
_SAME_NAMED: Final = (
    "count", "rel_l2", "max_abs", "max_abs_at", "max_rel", "max_rel_at", "max_scaled", "cosine", "rmse", "exact",
    "within_1e3", "within_5e3", "nonfinite", "nonfinite_at", "target_nonfinite", "baseline_nonfinite",
)  # fmt: skip
_LISTS: Final = ("target_shape", "baseline_shape", "max_abs_at", "max_rel_at", "nonfinite_at")


def comparison_rows(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield rows as plain values under `COLUMNS`; dtype, shape and layout only where the sides differ."""
    for row in rows:
        place = row.place
        cells: dict[str, Any] = {
            "step": place.step,
            "rank": place.rank,
            "target": row.target.call if row.target else None,
            "baseline": row.baseline.call if row.baseline else None,
            "matched_by": HOW_TEXTS[row.how] if row.how else None,
            "slot": row.slot,
            "status": row.status,
            "floor": row.floor,
            "floor_from": row.floor_from or None,
            "ratio": row.ratio,
            "own_error": row.own_error,
            "amplification": row.amplification,
            "note": row.note or None,
        }
        cells |= {name: getattr(place, name) for name in ("kind", "phase", "op", "module", "source")}
        yield cells | _measured(row)


def _measured(row: Row) -> dict[str, Any]:
    close = row.closeness
    if close is None:
        return {}
    cells: dict[str, Any] = {"level": close.level, "bitwise": close.bitwise, "error": close.error}
    for name in ("dtype", "shape", "layout"):
        pair = getattr(close, name)
        if pair is not None:
            sides = [list(side) if name == "shape" else side for side in pair]
            cells |= {f"target_{name}": sides[0], f"baseline_{name}": sides[1]}
    metrics = close.metrics
    if metrics is not None:
        cells |= {name: getattr(metrics, name) for name in _SAME_NAMED}
        cells |= {name: list(cells[name]) for name in _LISTS if cells.get(name) is not None}
        if metrics.nonfinite_values is not None:
            cells["nonfinite_values"] = [f"{number:.6g}" for number in metrics.nonfinite_values]  # JSON has no NaN
        cells["compared_as"] = metrics.dtype
        cells |= dict(zip(ULP_COLUMNS, metrics.ulp, strict=False))
    return cells


def table_of_rows(library: str, rows: Iterable[Row]) -> Any:
    """Return rows as a table of one of `LIBRARIES`; what was not measured is missing."""
    found = list(comparison_rows(rows))
    return LIBRARIES[library]({name: [row.get(name) for row in found] for name in COLUMNS}, COLUMN_TYPES)
