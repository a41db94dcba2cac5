"""The first NaN or Inf of one recording that another one of the same program has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal

from ...dump import RankDump
from ...errors import MissingDataError
from .search import Event, find_nonfinite

Side = Literal["target", "baseline"]


@dataclass(frozen=True, slots=True)
class Apart:
    """A call of one side that made NaN or Inf, or was given them, where the other side has none."""

    side: Side
    event: Event

    def __str__(self) -> str:
        slot = self.event.results[0]
        other = "target" if self.side == "baseline" else "baseline"
        how = "was given" if self.event.kind == "outside" else "made"
        counted = f"{_counted(self.event)} of {slot.contents.count} {slot.dtype}"
        why = f": {self.event.why}" if self.event.why else ""
        return f"the {self.side} {how} {counted}, the {other} has none here{why}"


def first_apart(
    target: RankDump,
    baseline: RankDump,
    pairs: Mapping[int, int],
    brought: tuple[Container[int], Container[int]] = ((), ()),
) -> Apart | None:
    """Return the first finding of NaN or Inf that one side has alone, the target's where both have one.

    Args:
        target: one step and rank.
        baseline: the same of the other side.
        pairs: ids of the target's calls to those of their counterparts.
        brought: ids of both sides' collectives that are right: what they brought was made by another rank.
    """
    try:
        ours, theirs = _events(target, brought[0]), _events(baseline, brought[1])
    except MissingDataError:  # neither statistics nor bytes
        return None
    paired = {(e.call_id, pairs.get(e.call_id)) for e in ours}
    made = {e.call_id for e in theirs}
    common = {call for call, other in paired if other in made}
    taken = {pairs[call] for call in common}
    left = [e for e in ours if e.call_id not in common], [e for e in theirs if e.call_id not in taken]
    alike = Counter(map(_place, left[0])) & Counter(
        map(_place, left[1])
    )  # calls that were not paired, but are the same
    for side, events in zip(("target", "baseline"), left, strict=True):
        seen = Counter[object]()
        for event in events:
            seen[_place(event)] += 1
            if seen[_place(event)] > alike[_place(event)]:
                return Apart("target" if side == "target" else "baseline", event)
    return None


def _events(rank: RankDump, brought: Container[int]) -> list[Event]:
    found = find_nonfinite(rank)
    events = (event for event in (*found.producers, *found.outside) if event.call_id not in brought)
    return sorted(events, key=lambda event: event.call_id)


def _place(event: Event) -> tuple[str, str, str]:
    return event.op, event.phase, event.module


def _counted(event: Event) -> str:
    found = event.results[0].contents
    counts = ((found.nan, "NaN"), (found.posinf, "+Inf"), (found.neginf, "-Inf"))
    return ", ".join(f"{count} {what}" for count, what in counts if count)
