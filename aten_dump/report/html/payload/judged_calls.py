"""The section ``judged``: what a comparison says of each call of one step-rank, and its rows.

The one place of the report, with `comparison_answer.py`, that knows what `compare` returns. It takes rows as the
table of the command line has them (`comparison_rows`), so that both show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ....analysis.comparison_rows import comparison_rows
from ....analysis.evidence.findings import Row
from ....choices import STATUS_TEXTS
from ....dump import RankDump
from .columns import Integers, Interned, Section

STATUSES: Final = ("", *STATUS_TEXTS)
# From the mildest to the worst: what is said of a call is the worst that is said of its slots.
_SEVERITY: Final = ("", "same", "within", "unknown", "unmatched", "different")
_NUMBERS: Final = ("error", "floor", "ratio", "max_abs", "cosine", "own_error", "amplification")
_TEXTS: Final = ("slot", "level", "floor_from", "matched_by", "note")
# Of rows that differ, all that was measured.
_MORE: Final = (
    "max_abs_at", "max_rel", "max_rel_at", "rmse", "nonfinite", "nonfinite_at", "nonfinite_values",
    "target_nonfinite", "baseline_nonfinite", "count", "compared_as", "target_dtype", "baseline_dtype", "target_shape",
    "baseline_shape", "target_layout", "baseline_layout", "exact", "within_1e3", "within_5e3",
)  # fmt: skip


def judged_section(rows: Sequence[Row], rank: RankDump, partner: RankDump, side: str) -> bytes:
    """Return the section of one side.

    Args:
        rows: of the comparison of this step-rank.
        rank: the step and rank of this side.
        partner: that of the other side.
        side: "target" or "baseline".
    """
    other = "baseline" if side == "target" else "target"
    plain = [row for row in comparison_rows(rows) if row[side] is not None]
    section = Section()
    section.add_json("statuses", STATUSES)
    at = [rank.links.names.get(row[side], -1) for row in plain]
    order = np.argsort(np.array(at, np.int64), kind="stable")
    plain = [plain[number] for number in order.tolist()]
    calls = np.array(at, np.int64)[order]
    statuses = [_code(row["status"]) for row in plain]
    section.add_integers("row.call", calls, delta=True)
    section.add_integers("row.status", statuses)
    for name in _NUMBERS:
        section.add_decimals(f"row.{name}", [_number(row.get(name)) for row in plain])
    for name in _TEXTS:
        texts: Interned[str] = Interned()
        section.add_integers(f"row.{name}", [texts.number(row.get(name) or "") for row in plain])
        section.add_json(f"row.{name}", texts.items)
    section.add_json("more", {number: _more(row) for number, row in enumerate(plain) if row["status"] == "different"})
    partners = np.full(len(rank.calls), -1, np.int64)
    names = partner.links.names
    partners[calls[calls >= 0]] = [
        names.get(row[other], -1) if row[other] else -1 for row, call in zip(plain, calls, strict=True) if call >= 0
    ]
    section.add_integers("partner", partners, delta=True)
    section.add_integers("status", _worst(len(rank.calls), calls, statuses))
    return section.pack()


def _code(status: str) -> int:
    return STATUSES.index(status) if status in STATUSES else 0


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else None


def _more(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(row[name]) for name in _MORE if row.get(name) is not None}


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _worst(n: int, calls: Integers, statuses: Iterable[int]) -> list[int]:
    """Return the code of the worst status of each call's rows, 0 for a call without any."""
    severity = [_SEVERITY.index(name) if name in _SEVERITY else 0 for name in STATUSES]
    found = [0] * n
    for call, status in zip(calls.tolist(), statuses, strict=True):
        if call >= 0 and severity[status] > severity[found[call]]:
            found[call] = status
    return found
