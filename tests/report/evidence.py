"""What a comparison found, made by hand."""

from __future__ import annotations

from typing import Any

from aten_dump.analysis.evidence.findings import Finding, Place, RankEvidence, Row


def place(id: int, call: str = "", phase: str = "forward", module: str = "fc", kind: str = "aten") -> Place:
    return Place(
        0, 0, id, call or f"Aten.add.{id}.forward", "aten::add", kind, phase, module, "train.py:1 in f", "", ""
    )


def row(
    target: Place | None, baseline: Place | None = None, status: Any = "different", slot: str = "output.0", **more: Any
) -> Row:
    return Row(target, baseline, "order" if target and baseline else "", slot, status, **more)


def finding(of: Row, kind: Any = "op") -> Finding:
    number = of.target.id if of.target is not None else 0
    return Finding(kind, of, "it is off", "its inputs are right", (number, 1))


def evidence(rows: list[Row], findings: list[Finding] | None = None, **more: Any) -> RankEvidence:
    fields: dict[str, Any] = {
        "target": "t", "baseline": "b", "steps": (0, 0), "ranks": (0, 0), "level": "tensor", "levels": {"tensor": 3, "hash": 0},
        "calls": (4, 5), "pairs": {"anchor": 2, "same": 1}, "rows": tuple(rows), "findings": tuple(findings or ()),
        "modules": {}, "paired": {},
    }  # fmt: skip
    return RankEvidence(**{**fields, **more})
