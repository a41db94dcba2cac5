"""What came of comparing two dumps, all steps and ranks together: the verdict, the first cause, the answer in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from ..dump.shown.command_lines import next_line
from .comparison_rows import table_of_rows
from .evidence.answer import cause_sentences, compared, let_through, travel
from .evidence.findings import Finding, RankEvidence, Row
from .evidence.row_summary import RowSummary, summary_of
from .evidence.step_ranks import told_together, where, where_all
from .meetings.first_cause import brought_by, first_cause, unfounded
from .notebook_view import comparison_html
from .pairing.user_mapping import Mapping

Verdict = Literal["same", "within", "different", "incomparable"]

VERDICT_TEXTS: Final[dict[Verdict, str]] = {
    "same": "The dumps are the same: every compared tensor is bitwise equal.",
    "within": "The dumps agree: both compute the same, and what differs is rounding.",
    "different": "The dumps differ.",
    "incomparable": "The dumps could not be compared.",
}
_NOT_WHOLE: Final = "The dumps could not be compared: what is there shows no difference, and something is missing."
_ESTIMATED: Final = (
    "The dumps agree as far as their data go: what differs is no more than rounding may explain; most calls were "
    "estimated."
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
        told = told_together((evidence, text) for evidence in self.ranks for text in evidence.not_whole)
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
        text = _ESTIMATED if is_estimated and self.verdict == "within" else VERDICT_TEXTS[self.verdict]
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
        lines += [f"{at}: {text}" for at, text in told_together((e, compared(e)) for e in self.ranks)]
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
        told = told_together((evidence, note) for evidence in self.ranks for note in evidence.notes)
        return [*self.notes, *(note if len(self.ranks) == 1 else f"{at}: {note}" for at, note in told)]

    def _verdict(self) -> Iterator[str]:
        yield self.headline
        if self.first is not None:
            if len(self.ranks) > 1:
                yield f"In {where(self.first[0])}, the first of {len(self.ranks)}:"
        elif self.verdict == "incomparable" and not self.not_whole:
            yield from self._unknown()
        elif self.verdict == "different":
            first = self._summary.first_different
            if first is not None:
                why = f": {first.note}" if first.note else ""
                yield f"No op is to blame by itself; the first difference is {first.place.call} {first.slot}{why}."
            leaning = told_together((evidence, str(one)) for evidence, one in unfounded(self.ranks))
            yield from (f"{at}: {text}, and was not compared." for at, text in leaning)

    def _unknown(self) -> Iterator[str]:
        """Yield why nobody can say whether the dumps agree."""
        if any(evidence.level != "none" for evidence in self.ranks):
            unknown = told_together((e, _listed(e.unknown_ends)) for e in self.ranks if e.unknown_ends)
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
        yield from (f"  {at}: {text}" for at, text in told_together(told))
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
