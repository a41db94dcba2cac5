"""The answer of a comparison as plain values: the first cause, its numbers, the way of the error, counts and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ....analysis.comparison import Comparison
from ....analysis.comparison_rows import comparison_rows
from ....analysis.evidence.findings import Finding, RankEvidence, Row
from ....analysis.evidence.row_summary import summary_of
from ...units import format_number

_MOST_STEPS: Final = 24
_MOST_FINDINGS: Final = 12


def comparison_answer(found: Comparison) -> dict[str, Any]:
    """Return what the page's answer shows of a comparison."""
    answer: dict[str, Any] = {
        "verdict": found.verdict,
        "headline": found.headline,
        "text": found.answer(),
        "cause": None,
        "notes": found.all_notes,
        "ranks": [_rank(evidence) for evidence in found.ranks],
    }
    if found.first is not None:
        evidence, finding = found.first
        answer["cause"] = _finding(evidence, finding)
        answer["travel"] = _travel(evidence, finding)
        answer["others"] = [_finding(evidence, other) for other in evidence.findings[1 : _MOST_FINDINGS + 1]]
        answer["other_count"] = len(evidence.findings) - 1
    return answer


def _rank(evidence: RankEvidence) -> dict[str, Any]:
    cause = evidence.cause
    return {
        "target": [evidence.steps[0], evidence.ranks[0]],
        "baseline": [evidence.steps[1], evidence.ranks[1]],
        "together": evidence.together,
        "calls": evidence.calls,
        "pairs": sum(evidence.pairs.values()),
        "statuses": dict(summary_of(evidence.rows).statuses),
        "levels": {name: count for name, count in evidence.levels.items() if count},
        "cause": None if cause is None else cause.row.place.call,
    }


def _finding(evidence: RankEvidence, finding: Finding) -> dict[str, Any]:
    row = next(comparison_rows([finding.row]))
    place = finding.row.place
    return {
        "side": "target" if finding.row.target is not None else "baseline",
        "step": place.step,
        "rank": place.rank,
        "call": place.call,
        "partner": row["baseline"] if finding.row.target is not None else None,
        "kind": finding.kind,
        "slot": finding.row.slot,
        "text": finding.text,
        "inputs": finding.inputs,
        "op": place.op,
        "phase": place.phase,
        "module": place.module,
        "source": place.source,
        "forward": place.forward,
        "error": _shown(row.get("error")),
        "floor": _shown(row.get("floor")),
        "floor_from": row.get("floor_from"),
        "ratio": _shown(row.get("ratio")),
        "numbers": [*_numbers(row), *(("besides", fact) for fact in finding.facts)],
    }


def _shown(number: float | None) -> float | str | None:
    return str(number) if isinstance(number, float) and number in (float("inf"),) else number


def _numbers(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of what was measured."""
    for side in ("shape", "dtype", "layout"):
        if row.get(f"target_{side}") is not None:
            yield side, f"{row[f'target_{side}']} against {row[f'baseline_{side}']}"
    for name, key in (
        ("relative L2" if row.get("level") == "tensor" else "difference over rms", "error"),
        ("noise floor", "floor"),
        ("times the floor", "ratio"),
        ("own error", "own_error"),
        ("times the error of its inputs", "amplification"),
        ("greatest difference", "max_abs"),
        ("cosine", "cosine"),
    ):
        if row.get(key) is not None:
            yield name, format_number(float(row[key]))
    if row.get("max_abs_at") is not None:
        yield "found at", str(row["max_abs_at"])
    if row.get("nonfinite"):
        yield "NaN or Inf, the other side not", f"{row['nonfinite']} elements"
    if row.get("nonfinite_values"):
        yield f"at {row['nonfinite_at']}", " against ".join(row["nonfinite_values"])


def _travel(evidence: RankEvidence, finding: Finding) -> list[dict[str, Any]]:
    """Return the first result that differs in each phase and module, from the cause on."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in evidence.rows:
        if row.status != "different" or row.target is None or row.target.id < finding.order[0]:
            continue
        place = row.target
        key = place.phase, place.module
        if key in found or row.slot.startswith("input") or place.kind != finding.row.place.kind:
            continue
        found[key] = _station(row)
    steps = list(found.values())
    if len(steps) <= _MOST_STEPS:
        return steps
    left_out = {"left_out": len(steps) - _MOST_STEPS}
    return [*steps[: _MOST_STEPS * 2 // 3], left_out, *steps[-(_MOST_STEPS // 3) :]]


def _station(row: Row) -> dict[str, Any]:
    """Return one result that the error reached."""
    place = row.place
    error = row.closeness.error if row.closeness else None
    has_nan = row.closeness is not None and row.closeness.nonfinite
    over_floor = _most(error / row.floor) if error is not None and row.floor and not has_nan else None
    return {
        "call": place.call, "module": place.module, "phase": place.phase, "step": place.step, "rank": place.rank,
        "ratio": None if row.ratio is None else _most(row.ratio), "over_floor": over_floor,
        "error": None if error is None else "NaN or Inf" if has_nan else format_number(error),
    }  # fmt: skip


def _most(number: float) -> float:
    """Return a number that JSON can hold."""
    return min(number, 1e300)
