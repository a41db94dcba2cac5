"""The table of a comparison: a row for each slot of each pair of calls; terminal, CSV, JSON and Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from ..analysis.distance.metrics import ULP_EDGES
from ..analysis.evidence.findings import Row
from ..analysis.pairing.alignment import HOW_TEXTS
from ..errors import MissingDataError, StoreError
from ..whole_files import replaced_when_whole
from .table import Table, names, numbers, words
from .units import format_number

ULP_COLUMNS: Final = (*(f"ulp_to_{edge}" for edge in ULP_EDGES), "ulp_beyond")
COLUMNS: Final = (
    "step", "rank", "target", "baseline", "matched_by", "kind", "phase", "op", "module", "source", "slot", "status",
    "level", "bitwise", "error", "floor", "floor_from", "ratio", "own_error", "amplification", "target_dtype",
    "baseline_dtype", "target_shape", "baseline_shape", "target_layout", "baseline_layout", "count", "compared_as",
    "rel_l2", "max_abs", "max_abs_at", "max_rel", "max_rel_at", "max_scaled", "cosine", "rmse", "exact", "within_1e3",
    "within_5e3", *ULP_COLUMNS, "nonfinite", "nonfinite_at", "nonfinite_values", "target_nonfinite",
    "baseline_nonfinite", "note",
)  # fmt: skip
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


def comparison_table(rows: Iterable[Row], limit: int | None) -> tuple[Table, int]:
    """Return the table for a terminal, and how many rows `limit` left out."""
    table = Table(
        words("status"),
        names("target"),
        words("slot"),
        names("baseline", spare=1),
        words("matched by", spare=5),
        names("module", spare=2),
        numbers("error"),
        numbers("floor", spare=2),
        numbers("ratio"),
        numbers("max abs", spare=3),
        numbers("cosine", spare=4),
    )
    found = iter(rows)
    for row in islice(found, limit):
        close = row.closeness
        metrics = close.metrics if close else None
        table.add_row(
            row.status,
            row.target.call if row.target else "-",
            row.slot or "-",
            row.baseline.call if row.baseline else "-",
            row.how or "-",
            row.place.module or "-",
            format_number(close.error if close else None),
            format_number(row.floor),
            format_number(row.ratio),
            format_number(metrics.max_abs if metrics else None),
            format_number(metrics.cosine if metrics else None),
        )
    return table, sum(1 for _ in found)


def write_parquet(rows: Iterable[dict[str, Any]], names: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Write rows as a Parquet file, which has its name only when it is whole.

    Raises:
        MissingDataError: pyarrow is not installed.
        StoreError: the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        message = "Parquet needs pyarrow: pip install 'aten-dump[parquet]', or take --format csv"
        raise MissingDataError(message) from None
    table = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    try:
        with replaced_when_whole(path) as part:
            parquet.write_table(table, part)
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}") from error
