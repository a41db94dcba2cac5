"""Who waits where in a run that hangs, or did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..choices import PATIENCE_S
from ..dump import Dump, open_dump
from ..dump.shown.step_ranks import named
from ..errors import MissingDataError
from ..store.objects.url_path import place_of
from .executors import each_rank
from .waiting.disagreements import disagreements
from .waiting.findings import Finding, Situation, findings_of, meeting_text
from .waiting.flight_recorder import read_traces
from .waiting.meetings_begun import BegunStep, Key, Meet, Reading, read_begun
from .waiting.open_meetings import OpenMeeting, open_meetings
from .waiting.rank_lives import Life, lives_of

_MOST_LINES: Final = 16  # about ranks
_LABELS: Final = {
    "apart": "Ranks go apart",
    "cycle": "Deadlock",
    "ended": "A rank has ended",
    "stuck": "Stuck",
    "transfer": "No end",
    "unwaited": "Not waited for",
    "slow": "Slow",
}


@dataclass(frozen=True, slots=True)
class Hang:
    """What was found: the cause first, what is open, and what each rank is at."""

    findings: tuple[Finding, ...]
    open: tuple[OpenMeeting, ...]
    ranks: tuple[Life, ...]

    @property
    def exit_code(self) -> int:
        """1 if something keeps ranks from going on or they disagree; 0 if not, or if some are slow; 2 if that is not
        known, as the step is not recorded.
        """
        if any(finding.is_fault for finding in self.findings):
            return 1
        return 2 * any(life.is_unrecorded for life in self.ranks)

    def answer(self) -> str:
        """Return it as text, a line for each thing; ranks of which the same is said are one line."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.exit_code == 2:
            ranks = [life.rank for life in self.ranks if life.is_unrecorded]
            yield f"Not known who waits: {named('rank', ranks)} in a step that is not recorded. Where each of them is:"
        elif not self.exit_code:
            yield "No hang: a rank is slow." if self.findings else "No hang: no rank waits for another one."
        for number, finding in enumerate(self.findings):
            follows = finding.is_consequence or self.findings[0].kind in ("apart", "cycle")
            label = "" if not number else "May follow from it: " if follows else "Also: "
            yield f"{label}{_LABELS[finding.kind]}: {finding.text}"
            yield from (f"  {line}" for line in finding.details)
        alike: dict[str, list[int]] = {}
        told = {rank for finding in self.findings for rank in (*finding.ranks, *finding.waiting)}
        for life in (life for life in self.ranks if life.rank not in told):
            step = "no step on file" if life.step is None else f"step {life.step}"
            alike.setdefault(f"{step}; {life.words()}", []).append(life.rank)
        for text, ranks in list(alike.items())[:_MOST_LINES]:
            yield f"{named('rank', ranks)}: {text}"
        if len(alike) > _MOST_LINES:
            yield f"... {len(alike) - _MOST_LINES} more such lines; --format json has all"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; ``docs/json/hang.schema.json`` describes them."""
        return {
            "schema": 1,
            "exit_code": self.exit_code,
            "findings": [finding.row for finding in self.findings],
            "open": [_open_row(meeting) for meeting in self.open],
            "ranks": [_rank_row(life) for life in self.ranks],
        }


def hang(
    dump: str | Path | Dump,
    *,
    patience_s: float = PATIENCE_S,
    flight_recorder: Sequence[str | Path] = (),
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Hang:
    """Find which rank waits for which in a run that hangs, or that hung and was killed.

    It reads the collectives that ranks have begun, in all steps on file, and signs of life; the run may still write.

    Args:
        dump: the dump, or its path.
        patience_s: seconds that a rank may let others wait until it counts as stuck instead of slow.
        flight_recorder: files that torch's flight recorder wrote, one for each rank; nothing in them is run.
        executor: reads the steps and ranks; None: this process.
        progress: called with the number of steps and ranks that are read, and of all.

    Returns:
        The findings, the cause first, and the state of each rank.

    Raises:
        MissingDataError: no rank has written anything yet.
        FormatError: a file is damaged, or is no trace of a flight recorder.

    Example:
        >>> hang("dump").findings
        ()
    """
    opened = dump if isinstance(dump, Dump) else open_dump(place_of(dump).absolute())
    readings = [Reading(rank) for rank in opened.all_ranks()]
    steps: dict[int, dict[int, BegunStep]] = {}
    for begun in each_rank(read_begun, readings, executor, progress):
        steps.setdefault(begun.step, {})[begun.rank] = begun
    latest = {rank: begun for _, ranks in sorted(steps.items()) for rank, begun in ranks.items()}

    def read(step: int, rank: int, key: Key) -> Sequence[Meet]:
        return read_begun(Reading(opened.rank(step, rank), key)).seen

    apart, waiting = list(disagreements(steps, read)), open_meetings(steps, latest)
    traced = read_traces(flight_recorder)
    now = time.time_ns()
    lives = lives_of(opened, latest, now)
    if not flight_recorder and all(life.kind == "absent" for life in lives.values()):
        raise MissingDataError(f"no rank of {opened.path} has written anything yet: nothing says who waits")
    if not any(life.kind in ("alive", "stopped", "silent") for life in lives.values()):
        now = max((life.seen_unix_ns for life in lives.values()), default=now)
    known = Situation(lives, steps, (*apart, *traced.apart), (*waiting, *traced.open), now, patience_s)
    return Hang(tuple(findings_of(known)), tuple(known.open), tuple(lives[rank] for rank in sorted(lives)))


def _open_row(meeting: OpenMeeting) -> dict[str, Any]:
    key = meeting.key
    return {
        "group": key.group, "ranks": list(key.ranks), "tag": key.tag, "step": meeting.step, "number": meeting.number,
        "text": meeting_text(meeting), "since_unix_ns": meeting.since_unix_ns, "missing": list(meeting.missing),
        "waiting": [
            {"rank": rank, "call": meet.name, "where": meet.where, "module": meet.module,
             "since_unix_ns": meet.begun_unix_ns}
            for rank, meet in sorted(meeting.waiting.items())
        ],
    }  # fmt: skip


def _rank_row(life: Life) -> dict[str, Any]:
    last = life.last
    return {
        "rank": life.rank, "state": life.kind, "step": life.step, "seen_unix_ns": life.seen_unix_ns,
        "error": life.error, "line": life.line, "inside": life.inside, "module": life.module,
        "last_call": None if last is None else {"name": last.name, "where": last.where, "unix_ns": last.unix_ns},
        "text": life.words(),
    }  # fmt: skip
