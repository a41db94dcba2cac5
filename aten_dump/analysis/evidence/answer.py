"""The answer of a comparison in words: the first cause, its numbers against the floor, and how the error travels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..distance.metrics import Metrics
from ..distance.value_distance import Closeness
from .findings import Finding, RankEvidence, Row
from .noise_floors import FLOOR_TEXTS, FloorFrom
from .row_summary import RowSummary, summary_of

_MOST_STEPS: Final = 12
_MOST_NAMED: Final = 3


def cause_sentences(finding: Finding, evidence: RankEvidence) -> Iterator[str]:
    """Yield the sentences about a first cause."""
    row = finding.row
    place = row.place
    what = "result" if finding.order[1] or finding.calls else "input"
    partner = f" (baseline {row.baseline.call})" if row.target and row.baseline else f" of the {finding.side}"
    yield f"First cause: {place.call}{partner}, {what} {row.slot}: {finding.text}."
    if finding.inputs:
        yield f"{finding.inputs[0].upper()}{finding.inputs[1:]}."
    if row.closeness is not None or finding.kind != "nonfinite":
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
        yield f"{others} further findings stand on their own, the next at {more}."


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
    """Yield what the calls differ in, of which no data tell what comes of it, in lines."""
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
