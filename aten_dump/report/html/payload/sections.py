"""All sections of a report: those of each step and rank, and the outline that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ....analysis.comparison import Comparison
from ....analysis.evidence.findings import RankEvidence
from ....choices import MOST_SHOWN_CALLS
from ....dump import Dump, RankDump
from .call_arguments import arguments_section
from .call_tree import tree_section
from .chunks import CHUNK, chunk_count
from .columns import Section
from .comparison_answer import comparison_answer
from .dump_answer import nonfinite_answer, rank_outline, run_facts
from .histograms import histograms_section
from .judged_calls import judged_section
from .saved_memory import saved_section
from .step_series import StepSeries
from .value_columns import values_section
from .value_uses import uses_section

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
    most_calls: int = MOST_SHOWN_CALLS  # of all that is shown call by call; the first step-rank is always shown
    progress: Progress = field(default=lambda done, total: None)

    def sides(self) -> Iterator[tuple[Side, Dump]]:
        yield "target", self.target
        if self.baseline is not None:
            yield "baseline", self.baseline


def report_sections(subject: Subject) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every section; the outline comes last."""
    places = [(side, rank) for side, dump in subject.sides() for rank in dump.all_ranks()]
    outlines: dict[str, list[dict[str, Any]]] = {"target": [], "baseline": []}
    series = StepSeries(subject.target.steps, subject.target.ranks)
    calls = 0
    for number, (side, place) in enumerate(places):
        rank = place.anew()  # so that one index is in memory at a time
        outline = rank_outline(rank)
        calls += outline["calls"]
        shown = _is_wanted(subject, side, rank) and (calls <= subject.most_calls or calls == outline["calls"])
        calls -= 0 if shown else outline["calls"]
        if side == "target":
            answer = nonfinite_answer(rank)
            outline["nonfinite"] = answer if shown else {**answer, "calls_by_kind": {}}
            series.add(rank)
        if shown:
            yield from rank_sections(rank, f"{side}/{rank.step}/{rank.rank}")
            yield from judged_sections(subject, side, rank)
        outlines[side].append({**outline, "shown": shown})
        subject.progress(number + 1, len(places))
    over_steps = series.section()
    if over_steps is not None:
        yield "steps", over_steps
    yield OUTLINE, outline_section(subject, outlines)


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
