"""What came of comparing two dumps, all steps and ranks together: the verdict, the first cause, the answer in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from ..dump.shown.command_lines import next_line
from ..dump.shown.step_ranks import step_and_ranks
from .comparison_rows import table_of_rows
from .distance.metrics import Metrics
from .distance.value_distance import Closeness
from .evidence.findings import Finding, RankEvidence, Row
from .evidence.noise_floors import FLOOR_TEXTS, FloorFrom
from .evidence.row_summary import RowSummary, summary_of
from .meetings.first_cause import brought_by, first_cause, unfounded
from .notebook_view import comparison_html
from .pairing.user_mapping import Mapping

_MOST_STEPS: Final = 12
_MOST_NAMED: Final = 3

Verdict = Literal["same", "within", "different", "incomparable"]

VERDICT_TEXTS: Final[dict[Verdict, str]] = {
    "same": "The dumps are the same: every compared tensor is bitwise equal.",
    "within": "The dumps agree: both compute the same, and what differs is rounding.",
    "different": "The dumps differ.",
    "incomparable": "The dumps could not be compared.",
}
_NOT_WHOLE: Final = "The dumps could not be compared: what is there proves no difference, and something is missing."
_ESTIMATED: Final = (
    "The dumps agree as far as their data go: what differs is no more than rounding may explain; most calls were "
    "estimated."
)
_UNSHOWN: Final = (
    "The dumps agree in what they end with, but for rounding; on the way they compute otherwise: see the notes."
)
_NO_DATA: Final = (
    'No data were recorded of what their tensors hold: data="statistic", "hash" or "full", on both sides, would.'
)
_ALIKE: Final = "As programs they are the same: the same calls, arguments and shapes."
_MOST_ENDS: Final = 5  # losses, gradients and the like that are named
EXIT_CODES: Final[dict[Verdict, int]] = {"same": 0, "within": 0, "different": 1, "incomparable": 2}


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two dumps.

    It has more than twenty methods: all that can be asked of an answer, in one place.

    Example:
        >>> found = compare("dump", "baseline")
        >>> sorted({row.status for row in found.rows})
        ['different', 'same', 'within']
    """

    target: str
    baseline: str
    ranks: tuple[RankEvidence, ...]
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # which steps and ranks are gone from the dumps, in sentences
    unfinished: tuple[str, ...] = ()  # which were not compared as their worker ended, in sentences

    @property
    def verdict(self) -> Verdict:
        statuses = self._summary.judged
        if statuses["different"] or any(evidence.findings for evidence in self.ranks) or any(unfounded(self.ranks)):
            return "different"
        if not (statuses["same"] or statuses["within"]) or self._summary.not_compared:
            return "incomparable"
        if any(evidence.incomplete or evidence.unknown_ends for evidence in self.ranks) or self.not_whole:
            return "incomparable"
        return "within" if statuses["within"] or statuses["unmatched"] else "same"

    @cached_property
    def not_whole(self) -> list[str]:
        """What the dumps or the comparison lack, in sentences: of what is not whole nothing is said to agree."""
        told = over_ranks((evidence, text) for evidence in self.ranks for text in evidence.not_whole)
        return [*self.unfinished, *(f"{at}: {text}" for at, text in told), *self.lost]

    @property
    def exit_code(self) -> int:
        """0 same or within noise, 1 different, 2 could not be compared."""
        return EXIT_CODES[self.verdict]

    @cached_property
    def first(self) -> tuple[RankEvidence, Finding] | None:
        """The first cause over all ranks, and the step and rank it is in."""
        return first_cause(self.ranks)

    @property
    def cause(self) -> Finding | None:
        """The first cause: the first op, in execution order, whose inputs agree and whose result does not."""
        return None if self.first is None else self.first[1]

    @property
    def rows(self) -> Iterator[Row]:
        """All rows, by step and rank, in execution order."""
        return (row for evidence in self.ranks for row in evidence.rows)

    @cached_property
    def _summary(self) -> RowSummary:
        whole = RowSummary()
        for evidence in self.ranks:
            whole.add_all(summary_of(evidence.rows))
        return whole

    @property
    def mapping(self) -> Mapping:
        """What was found, as a mapping: renamed modules, and the pairs of calls whose names differ."""
        modules: dict[str, str] = {}
        calls: dict[str, str] = {}
        for evidence in self.ranks:
            modules |= evidence.modules
            calls |= {one: other for one, other in evidence.paired.items() if one != other}
        return Mapping(modules=modules, calls=calls)

    @property
    def headline(self) -> str:
        """The verdict as a sentence, with what the user's rules kept out of it."""
        passed = let_through(self._summary)
        if self.not_whole and self.verdict == "incomparable":
            return _NOT_WHOLE
        if passed and self.verdict == "within":
            return f"The dumps agree but for what was let through: by {passed}."
        is_estimated = sum(2 * e.proven - e.judged for e in self.ranks) < 0
        text = VERDICT_TEXTS[self.verdict]
        if self.verdict == "within" and (is_estimated or any(e.unshown for e in self.ranks)):
            text = _ESTIMATED if is_estimated else _UNSHOWN
        return f"{text} Let through: by {passed}." if passed else text

    def to_pandas(self) -> Any:
        """Return all rows as a ``pandas.DataFrame`` (extra ``pandas``): a row for each slot of each pair.

        The columns are those of ``aten-dump compare --format csv``.

        Raises:
            MissingDataError: pandas is not installed.
        """
        return table_of_rows("pandas", self.rows)

    def to_polars(self) -> Any:
        """Return all rows as a ``polars.DataFrame`` (extra ``polars``); see `to_pandas`."""
        return table_of_rows("polars", self.rows)

    def to_arrow(self) -> Any:
        """Return all rows as a ``pyarrow.Table`` (extra ``parquet``); see `to_pandas`."""
        return table_of_rows("arrow", self.rows)

    def summary(self) -> dict[str, Any]:
        """Return the answer as plain values; ``docs/json/compare-summary.schema.json`` describes them."""
        cause, place = self.cause, None if self.cause is None else self.cause.row.place
        first = None
        if cause is not None and place is not None:
            first = {
                **{name: getattr(place, name) for name in ("call", "op", "phase", "module", "source", "step", "rank")},
                "slot": cause.row.slot,
                "kind": cause.kind,
                "text": cause.text,
                "facts": list(cause.facts),
            }
        others = sum(len(evidence.findings) for evidence in self.ranks) - (cause is not None)
        return {
            "schema": 1,
            "verdict": self.verdict,
            "headline": self.headline,
            "cause": first,
            "other_findings": max(0, others),
            "not_whole": list(self.not_whole),
            "notes": list(self.notes),
            "answer": self.answer(),
        }

    def answer(self) -> str:
        """Return what the dumps lack, the verdict, the first cause and how the error travels, in lines."""
        return "\n".join([*self.not_whole, *self._answer()])

    def _answer(self) -> list[str]:
        lines = [" ".join(self._verdict())]
        if self.first is not None:
            evidence, finding = self.first
            first, *others = cause_sentences(finding, evidence)
            lines = [f"{lines[0]} {first}", *(f"  {sentence}" for sentence in others)]
            steps = travel(evidence.rows, finding)
            lines += ["How the error travels:", *(f"  {step}" for step in steps)] if steps else []
            lines += self._causes_of_ranks() if len(self.ranks) > 1 else []
        lines += [f"{at}: {text}" for at, text in over_ranks((e, compared(e)) for e in self.ranks)]
        return [*lines, *(f"Note: {note}" for note in self.all_notes), self.what_next()]

    def what_next(self) -> str:
        """Return the command to run next, as a line."""
        if self.first is not None:
            evidence, finding = self.first
            place = finding.row.place
            path = evidence.baseline if finding.side == "baseline" else evidence.target
            is_wrong = finding.kind == "op" and finding.row.floor_from == "replay"  # for its own inputs
            return next_line("replay" if is_wrong else "show", path, place.call, step=place.step, rank=place.rank)
        sides = self.target, self.baseline
        status = {"different": "different", "incomparable": "unknown"}.get(self.verdict)
        if status is not None:
            return next_line("compare", *sides, "--format", "table", "--status", status)
        return next_line("report", *sides)

    @property
    def all_notes(self) -> list[str]:
        """The notes on the dumps and on steps and ranks, where each of those holds."""
        told = over_ranks((evidence, note) for evidence in self.ranks for note in evidence.notes)
        return [*self.notes, *(note if len(self.ranks) == 1 else f"{at}: {note}" for at, note in told)]

    def _verdict(self) -> Iterator[str]:
        yield self.headline
        if self.first is not None:
            if len(self.ranks) > 1:
                yield f"In {where(self.first[0])}, of {len(self.ranks)} compared:"
        elif self.verdict == "incomparable" and not self.not_whole:
            yield from self._unknown()
        elif self.verdict == "different":
            first = self._summary.first_different
            if first is not None:
                why = f": {first.note}" if first.note else ""
                yield f"No op is to blame by itself; the first difference is {first.place.call} {first.slot}{why}."
            leaning = over_ranks((evidence, str(one)) for evidence, one in unfounded(self.ranks))
            yield from (f"{at}: {text}, and was not compared." for at, text in leaning)

    def _unknown(self) -> Iterator[str]:
        """Yield why nobody can say whether the dumps agree."""
        if any(evidence.level != "none" or evidence.proven for evidence in self.ranks):
            unknown = over_ranks((e, _listed(e.unknown_ends)) for e in self.ranks if e.unknown_ends)
            yield from (f"{at}: nobody knows {ends}." for at, ends in unknown)
        elif any(evidence.rows for evidence in self.ranks):
            otherwise, lone = self._summary.seen_otherwise.count, self._summary.unmatched.count
            said = (
                f"other arguments in {otherwise} calls" if otherwise else "",
                f"{lone} calls of one side alone" if lone else "",
            )
            apart = " and ".join(filter(None, said))
            yield f"As programs they differ: {apart}." if apart else _ALIKE
            yield _NO_DATA

    def _causes_of_ranks(self) -> Iterator[str]:
        assert self.first is not None
        origin, place = self.first[0], self.first[1].row.place
        brought = brought_by(self.first, self.ranks)
        clean, told = [], []
        for evidence in self.ranks:
            call = brought.get(evidence.ranks[0]) if evidence.steps == origin.steps else None
            meeting = None if call is None else _apart_at(evidence, call)
            if evidence.findings:
                cause = evidence.findings[0].row
                told.append((evidence, f"first cause {cause.place.call} {cause.slot}"))
            elif meeting is not None:
                by = f"{place.call} of rank {origin.ranks[0]}"
                told.append((evidence, f"no cause of its own; what differs from {meeting} on was brought by {by}"))
            else:
                clean.append(evidence)
        yield from (f"  {at}: {text}" for at, text in over_ranks(told))
        if clean:
            yield f"  no cause in {where_all(clean)}"

    def __repr__(self) -> str:
        return f"<Comparison {self.verdict}: {self.target} against {self.baseline}, {len(self.ranks)} step-ranks>"

    def _repr_html_(self) -> str:
        ranks = [(where(evidence), evidence) for evidence in self.ranks]
        return comparison_html(f"{self.target} against {self.baseline}", self.answer(), ranks)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_ENDS} more" if len(names) > _MOST_ENDS else ""
    return ", ".join(names[:_MOST_ENDS]) + more


def _apart_at(evidence: RankEvidence, call: int) -> str | None:
    """Return the name of a call of the target if the sides have other numbers there."""
    rows = (row for row in evidence.rows if row.target is not None and row.target.id == call)
    return next((row.place.call for row in rows if row.closeness is not None and not row.closeness.bitwise), None)


def where(evidence: RankEvidence) -> str:
    """Return the step and rank of what was found, or how many ranks were put together."""
    ranks = evidence.ranks
    if evidence.together is not None:
        return f"step {_step(evidence)}, {evidence.together[0]} ranks against {evidence.together[1]}"
    if ranks[0] != ranks[1]:
        return f"step {_step(evidence)} rank {ranks[0]} against {ranks[1]}"
    return step_and_ranks(_step(evidence), ranks[:1])


def where_all(found: Iterable[RankEvidence]) -> str:
    """Return steps and ranks as a clause: ``step 0 ranks 0-63|65-127; step 1 rank 3``."""
    alike: dict[str, list[int]] = {}
    others: list[str] = []
    for evidence in found:
        if evidence.together is None and evidence.ranks[0] == evidence.ranks[1]:
            alike.setdefault(_step(evidence), []).append(evidence.ranks[0])
        else:
            others.append(where(evidence))
    return "; ".join([*(step_and_ranks(step, ranks) for step, ranks in alike.items()), *others])


def over_ranks(sentences: Iterable[tuple[RankEvidence, str]]) -> list[tuple[str, str]]:
    """Return each sentence once, with where it holds: of all ranks of a step of which it is said.

    Args:
        sentences: what is said of each step and rank.
    """
    places: dict[tuple[tuple[int, int], str], list[RankEvidence]] = {}
    for evidence, sentence in sentences:
        places.setdefault((evidence.steps, sentence), []).append(evidence)
    return [(where_all(group), sentence) for (_, sentence), group in places.items()]


def _step(evidence: RankEvidence) -> str:
    steps = evidence.steps
    return str(steps[0]) if steps[0] == steps[1] else f"{steps[0]} against {steps[1]}"


def cause_sentences(finding: Finding, evidence: RankEvidence) -> Iterator[str]:
    """Yield the sentences about a first cause."""
    row = finding.row
    place = row.place
    what = "result" if finding.order[1] or finding.calls else "input"
    partner = f" (baseline {row.baseline.call})" if row.target and row.baseline else f" of the {finding.side}"
    yield f"First cause: {place.call}{partner}, {what} {row.slot}: {finding.text}."
    if finding.inputs:
        yield f"{finding.inputs[0].upper()}{finding.inputs[1:]}."
    if row.closeness is not None or (row.target and row.baseline and finding.kind != "nonfinite"):
        yield numbers(row)
    yield from (f"{fact}." for fact in finding.facts)
    where = [f"op {place.op}", f"phase {place.phase}"]
    where += [f"module {place.module}"] if place.module else []
    where += [f"source {place.source}"] if place.source else []
    where += [f"belongs to {place.forward}"] if place.forward else []
    where += [f"its backward is {place.backward}"] if place.backward else []
    yield f"It is {', '.join(where)}."
    others = len(evidence.findings) - 1
    if others:
        more = ", ".join(dict.fromkeys(map(_named, evidence.findings[1:6])))
        said = "1 more independent difference" if others == 1 else f"{others} more independent differences, the next"
        yield f"{said}: {more}."


def _named(finding: Finding) -> str:
    return f"{finding.row.place.call}{f' of the {finding.side}' if finding.side else ''}"


def numbers(row: Row) -> str:
    """Return the numbers of a row against its floor, as a sentence."""
    close = row.closeness
    if close is None:
        return "It was not compared."
    parts = []
    if close.shape is not None:
        parts.append(f"shape {list(close.shape[0])} against {list(close.shape[1])}")
    if close.error is not None:
        name = "relative L2" if close.level == "tensor" else "difference of statistics over rms"
        parts.append(f"{name} {close.error:.3g}")
    if close.metrics is not None:
        at = "" if close.metrics.max_abs_at is None else f" at {list(close.metrics.max_abs_at)}"
        parts += [f"greatest difference {close.metrics.max_abs:.3g}{at}", f"cosine {_cosine(close.metrics.cosine)}"]
    if close.metrics is not None and close.metrics.nonfinite:
        parts.append(f"NaN or Inf where the other side has something else: {nonfinite_places(close.metrics)}")
    if row.own_error is not None or (row.ratio is not None and row.floor_from):
        parts.append(", ".join(_against_floor(row)))
    if row.amplification is not None:
        parts.append(f"{row.amplification:.3g} times the error of its inputs")
    if not parts:
        parts.append("the hashes differ" if close.level == "hash" else close.reason or "nothing was measured")
    return f"Numbers: {'; '.join(parts)}."


def nonfinite_places(metrics: Metrics) -> str:
    """Return how many elements are NaN or Inf and something else on the other side, and what stands at the first."""
    count = f"{metrics.nonfinite} element{'s' * (metrics.nonfinite != 1)}"
    if metrics.nonfinite_at is None or metrics.nonfinite_values is None:
        return count
    ours, theirs = metrics.nonfinite_values
    return f"{count}, the first at {list(metrics.nonfinite_at)}: {ours:.6g} against {theirs:.6g}"


def _against_floor(row: Row) -> Iterator[str]:
    if row.own_error is not None:
        yield f"own error {row.own_error:.3g}"
    if row.ratio is not None and row.floor_from:
        source: FloorFrom = row.floor_from
        size = f" of {row.floor:.3g}" if row.floor else ""
        how = "within" if row.ratio <= 1 else f"{row.ratio:.3g} times"
        why = f" ({row.floor_reason})" if row.floor_reason else ""
        yield f"{how} the floor{size} given by {FLOOR_TEXTS[source]}{why}"


def _cosine(cosine: float) -> str:
    """Return a cosine with the digits it needs: what is not 1 is not called 1."""
    text = f"{cosine:.6g}"
    return f"1 - {1 - cosine:.2g}" if text == "1" and cosine < 1 else text


def let_through(summary: RowSummary) -> str:
    """Return how much that is not bitwise equal each of the user's rules let through, as a clause; "" for nothing."""
    said = [f"rule '{rule}' {count} value{'s' * (count > 1)}" for rule, count in summary.let_through.items()]
    return f"{', '.join(said)} not bitwise equal" if said else ""


def travel(rows: Sequence[Row], finding: Finding) -> list[str]:
    """Return how the error goes on from its cause: for each phase and module it reaches, its first result there."""
    found: dict[tuple[str, str], str] = {}
    start = finding.order[0]
    for row in rows:
        if row.status != "different" or row.target is None or row.target.id < start or row.slot.startswith("input"):
            continue
        key = row.target.phase, row.target.module
        if key in found or row.target.kind != finding.row.place.kind:
            continue
        found[key] = f"{row.target.call}{_size(row.closeness)} ({row.target.module or 'no module'}, {row.target.phase})"
    steps = list(found.values())
    if len(steps) > _MOST_STEPS:
        steps = [*steps[: _MOST_STEPS - 3], f"... {len(steps) - _MOST_STEPS + 1} more modules", *steps[-2:]]
    return steps


def _size(close: Closeness | None) -> str:
    """Return how far a result is off; an error of the finite elements alone says nothing of one that has NaN or Inf."""
    if close is None or close.error is None:
        return ""
    return " NaN or Inf" if close.nonfinite else f" {close.error:.2g}"


def proofs(evidence: RankEvidence) -> str:
    """Return for how many calls it was shown that they compute the same, and which could only be estimated."""
    text = f"proven for {evidence.proven} of {evidence.judged} calls"
    left = len(evidence.unproven)
    if not left:
        return text
    names = ", ".join(evidence.unproven[:_MOST_NAMED])
    more = f" and {left - _MOST_NAMED} more" if left > _MOST_NAMED else ""
    return f"{text}, the others by distance ({names}{more})"


def _why_unknown(summary: RowSummary) -> str:
    """Return the reason why most tensors could not be compared, as a clause; "" where none is known."""
    if summary.undefined:
        return f", {summary.undefined} of them made of memory that nothing had written"
    reason, _ = next(iter(summary.why_unknown.most_common(1)), ("", 0))
    return f" (mostly: {reason})" if reason else ""


def compared(evidence: RankEvidence) -> str:
    """Return what was compared in one step and rank, and what the calls show without data, in lines."""
    return "\n".join([_counts(evidence), *_seen_without_data(evidence)])


def _seen_without_data(evidence: RankEvidence) -> Iterator[str]:
    """Yield in lines what calls differ in where no data show the effect."""
    summary = summary_of(evidence.rows)
    otherwise, lone = summary.seen_otherwise, summary.unmatched
    for row in otherwise.rows:
        where = ", ".join(filter(None, (row.place.module, row.place.source)))
        yield f"  called with other arguments: {row.place.call}{where and f' ({where})'}: {row.seen}"
    if otherwise.count > len(otherwise.rows):
        yield f"  {otherwise.count - len(otherwise.rows)} more calls were called with other arguments"
    if evidence.unknown_ends and lone.rows:
        names = [f"{row.place.call} of the {'baseline' if row.target is None else 'target'}" for row in lone.rows]
        yield f"  without a counterpart: {', '.join(names)}{', ...' if lone.count > len(names) else ''}"


def _counts(evidence: RankEvidence) -> str:
    """Return how many calls were paired and compared, and how."""
    pairs = ", ".join(f"{count} {how}" for how, count in evidence.pairs.items() if count)
    levels = ", ".join(f"{count} by {level}" for level, count in evidence.levels.items() if count and level != "none")
    summary = summary_of(evidence.rows)
    unmatched = summary.statuses["unmatched"]
    lines = [
        *([] if evidence.level == "none" else [proofs(evidence)]),
        f"{evidence.calls[0]} calls against {evidence.calls[1]}: {sum(evidence.pairs.values())} pairs "
        f"({pairs or 'none'})",
        f"values compared {levels}" if levels else "no values compared",
    ]
    if unmatched:
        unknown_to = f", {summary.not_compared} of them read and not compared" if summary.not_compared else ""
        lines.append(f"{unmatched} calls exist in one dump only{unknown_to}")
    unknown = summary.statuses["unknown"]
    if unknown:
        lines.append(f"{unknown} tensors could not be compared{_why_unknown(summary)}")
    return "; ".join(lines) + "."
