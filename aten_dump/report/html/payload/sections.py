"""All sections of a report: those of each step and rank, and the outline that names them.

The one place of the report, with `sections.py`, that knows what `compare` returns. It takes rows as the
table of the command line has them (`comparison_rows`), so that both show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ....analysis.comparison import Comparison
from ....analysis.comparison_rows import comparison_rows
from ....analysis.evidence.findings import Finding, RankEvidence, Row
from ....analysis.evidence.row_summary import summary_of
from ....choices import MOST_SHOWN_CALLS, STATUS_TEXTS
from ....dump import Dump, RankDump
from ....dump.known_tables import read_in_turn
from ...units import format_number
from .call_arguments import arguments_section
from .call_tree import tree_section
from .chunks import CHUNK, chunk_count
from .columns import Integers, Interned, Section
from .dump_answer import nonfinite_answer, rank_outline, run_facts
from .histograms import histograms_section
from .saved_memory import saved_section
from .step_series import StepSeries
from .value_columns import uses_section, values_section

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

_MOST_STEPS: Final = 24
_MOST_SHOWN: Final = 200  # steps and ranks call by call, 10 ms each at least
_MOST_FINDINGS: Final = 12

Side = Literal["target", "baseline"]
Progress = Callable[[int, int], None]
OUTLINE: Final = "outline"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a report is about."""

    target: Dump
    version: str  # of aten_dump
    baseline: Dump | None = None
    comparison: Comparison | None = None
    steps: tuple[int, ...] = ()  # to show call by call; all where empty
    ranks: tuple[int, ...] = ()
    most_calls: int = MOST_SHOWN_CALLS  # of all that is shown call by call (`_Budget`)
    progress: Progress = field(default=lambda done, total: None)
    read: Callable[[Dump], Iterable[RankDump]] = read_in_turn

    def sides(self) -> Iterator[tuple[Side, Dump]]:
        yield "target", self.target
        if self.baseline is not None:
            yield "baseline", self.baseline


def report_sections(subject: Subject) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every section; the outline comes last."""
    total = sum(len(step.ranks) for _, dump in subject.sides() for step in map(dump.step, dump.steps))
    outlines: dict[str, list[dict[str, Any]]] = {"target": [], "baseline": []}
    series = StepSeries(subject.target.steps, subject.target.ranks)
    budget = _Budget(subject.most_calls)
    ranks = ((side, rank) for side, dump in subject.sides() for rank in subject.read(dump))
    for done, (side, rank) in enumerate(ranks, 1):
        outline = rank_outline(rank)
        answer = nonfinite_answer(rank) if side == "target" else {}
        shown = _is_wanted(subject, side, rank) and budget.takes(outline["calls"], is_sick=bool(answer.get("first")))
        if side == "target":
            outline["nonfinite"] = answer if shown else {**answer, "calls_by_kind": {}}
            series.add(rank)
        if shown:
            yield from rank_sections(rank, f"{side}/{rank.step}/{rank.rank}")
            yield from judged_sections(subject, side, rank)
        outlines[side].append({**outline, "shown": shown})
        subject.progress(done, total)
    over_steps = series.section()
    if over_steps is not None:
        yield "steps", over_steps
    yield OUTLINE, outline_section(subject, outlines)


class _Budget:
    """Which steps and ranks are shown call by call: as many calls as are allowed, and what a reader begins with."""

    def __init__(self, most_calls: int) -> None:
        self._calls = most_calls
        self._taken = 0
        self._has_sick = False

    def takes(self, calls: int, *, is_sick: bool) -> bool:
        """Return True if a step and rank is shown: the first, the first with NaN or Inf, and what there is room for."""
        has_room = calls <= self._calls and self._taken < _MOST_SHOWN
        if not (has_room or not self._taken or (is_sick and not self._has_sick)):
            return False
        self._has_sick = self._has_sick or is_sick
        self._taken += 1
        self._calls -= calls
        return True


def _is_wanted(subject: Subject, side: Side, rank: RankDump) -> bool:
    if subject.comparison is not None and not list(_evidence(subject.comparison, side, rank)):
        return False
    return rank.step in (subject.steps or (rank.step,)) and rank.rank in (subject.ranks or (rank.rank,))


def _evidence(comparison: Comparison, side: Side, rank: RankDump) -> Iterator[RankEvidence]:
    at = 0 if side == "target" else 1
    for evidence in comparison.ranks:
        if (evidence.steps[at], evidence.ranks[at]) == (rank.step, rank.rank):
            yield evidence


def rank_sections(rank: RankDump, key: str) -> Iterator[tuple[str, bytes]]:
    """Yield the sections of a step and rank; their names begin with `key`."""
    yield f"{key}/tree", tree_section(rank)
    ids = value_ids(rank)
    for chunk in range(chunk_count(len(rank.calls))):
        yield f"{key}/calls/{chunk}", arguments_section(rank, ids, chunk)
    for chunk in range(chunk_count(len(ids))):
        yield f"{key}/values/{chunk}", values_section(rank, ids, chunk)
        yield f"{key}/uses/{chunk}", uses_section(rank, ids, chunk)
    histograms = histograms_section(rank, ids)
    if histograms is not None:
        yield f"{key}/histograms", histograms
    saved = saved_section(rank)
    if saved is not None:
        yield f"{key}/saved", saved


def value_ids(rank: RankDump) -> Any:
    """Return the ids of all values, ascending: sections name values by their place in it."""
    return np.asarray(rank.tables.values.places.in_order(), np.int64)


def judged_sections(subject: Subject, side: Side, rank: RankDump) -> Iterator[tuple[str, bytes]]:
    """Yield what the comparison says of the calls of a step and rank, if it was compared."""
    if subject.comparison is None or subject.baseline is None:
        return
    for evidence in list(_evidence(subject.comparison, side, rank))[:1]:
        at = 1 if side == "target" else 0
        other = subject.baseline if side == "target" else subject.target
        partner = other.rank(evidence.steps[at], evidence.ranks[at]).anew()
        yield f"{side}/{rank.step}/{rank.rank}/judged", judged_section(evidence.rows, rank, partner, side)


def outline_section(
    subject: Subject, outlines: Mapping[str, Iterable[dict[str, Any]]], generation: int | None = None
) -> bytes:
    """Return the section that says what there is; `generation` is that of a served dump, which may grow."""
    section = Section()
    section.add_json("generation", generation)
    section.add_json("version", subject.version)
    section.add_json("chunk", CHUNK)
    sides = {
        side: {
            "path": str(dump.path),
            "run": run_facts(dump),
            "problems": dump.problems,
            "step_ranks": list(outlines[side]),
        }
        for side, dump in subject.sides()
    }
    section.add_json("sides", sides)
    section.add_json("comparison", None if subject.comparison is None else comparison_answer(subject.comparison))
    return section.pack()


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
