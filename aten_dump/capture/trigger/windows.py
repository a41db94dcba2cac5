"""The windows of calls that are written, and what is said of them in the dump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from ...store.records import NOTE, Note
from .conditions import Cause
from .rank_signals import Signal


@dataclass(frozen=True, slots=True)
class Window:
    """Calls that are to be written, and the signal that asks for them."""

    first: int  # positions of calls in the run
    last: int
    signal: Signal

    def holds(self, position: int) -> bool:
        """Return True if a call is in it."""
        return self.first <= position <= self.last


class Quota:
    """Lets the same cause through a few times, so that one which stays does not fill the disk."""

    def __init__(self, times: int | None) -> None:
        self._times = times
        self._counts: Counter[Hashable] = Counter()

    def lets(self, cause: Cause) -> str | None:
        """Return why to write; None when a cause of the same kind has used up its times."""
        if self._times is None or cause.kind is None:
            return cause.why
        self._counts[cause.kind] += 1
        count = self._counts[cause.kind]
        if count == self._times:
            return f"{cause.why} (for the {_ordinal(count)} time; trigger_times={count} lets this cause write no more)"
        return cause.why if count < self._times else None


def _ordinal(count: int) -> str:
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


def why_written(signal: Signal, step: int | None, what: str, code: str = "trigger") -> Note:
    """Note in a step (None: in another one) why calls of it were written."""
    of_step = "" if step == signal.step else f" of step {signal.step}"
    where = f"call {signal.call}{of_step}"
    return Note(NOTE, code, f"{signal.why}: {where}, rank {signal.rank}; {what} were written", 1)
