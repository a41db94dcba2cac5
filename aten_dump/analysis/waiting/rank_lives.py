"""What became of each rank: it goes on, has raised, ended, was killed, is stopped, or is silent.

Theory of operation
    A rank's sign of life (`control_files.Pulse`) says what its main thread was doing, and how the recording ended. On
    the machine where the rank ran the system says whether the process lives. Elsewhere a rank is silent when it has
    given no sign for much longer than it should, and other ranks have: clocks of machines need not agree better.

    Ranks that are all gone at once were killed together, as by a scheduler when the job hung: they were alive.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ...dump import Dump
from ...store.control.control_files import NOT_SELECTED, ControlFiles, Pulse
from ...store.control.processes import process_state
from ...store.writing.index_writer import INDEX_FILE
from .meetings_begun import BegunStep, LastCall

Kind = Literal["raised", "exited", "closed", "failed", "gone", "stopped", "silent", "alive", "absent"]
ENDED: Final[frozenset[Kind]] = frozenset(("raised", "exited", "closed", "failed", "gone", "stopped", "silent"))

_MISSED_BEATS: Final = 4
_UNSEEN_NS: Final = 4 * 10**9  # for which a rank may live after its last sign
_EARLIER_NS: Final = 60 * 10**9  # by which clocks may differ from that of run.json
_DISTRIBUTED: Final = os.path.join("torch", "distributed")
_OF_BACKENDS: Final = re.compile(r"\b(gloo/transport|NCCL|HCCL)\b")  # in errors of C++, as in a backward of DDP
_MOST_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of one rank."""

    rank: int
    kind: Kind
    step: int | None  # the last on file
    seen_unix_ns: int  # the last sign of it; when it ended, where that is known
    error: str = ""  # that ended it
    line: str = ""  # of the program, where it is or where it ended
    inside: str = ""
    module: str = ""  # the innermost that is open
    last: LastCall | None = None
    waits: tuple[int, ...] | None = None  # calls whose Work it waits for; None where that is not known
    in_transfer: bool = False  # the error came out of torch.distributed: what another rank did may be its cause
    pulse_unix_ns: int = 0
    is_unrecorded: bool = False  # it lives in a step that is not recorded: what it has begun there is not known

    @property
    def ended_unix_ns(self) -> int:
        """When it ended, at the latest: one that was killed lived on after its last sign."""
        return self.seen_unix_ns + (_UNSEEN_NS if self.kind in ("gone", "silent", "stopped") else 0)

    def words(self) -> str:
        """Return what became of it, as a clause."""
        at = f", at {self.line}" if self.line else ""
        inside = f" (inside {self.inside})" if self.inside else ""
        last = f"; {last_call_text(self.last)}" if self.last else ""
        module = f" in module {self.module}" if self.module else ""
        return {
            "raised": f"raised {self.error}{at}",
            "exited": f"ended its program by {self.error}{at}",
            "closed": f"ended its recording{at}{last}",
            "failed": f"its recorder failed: {self.error}{last}",
            "gone": f"is gone without an error of Python: killed, or crashed{at}{last}",
            "stopped": f"is stopped by a signal{at}{last}",
            "silent": f"is silent: no thread of it runs, or its machine is gone{at}{last}",
            "alive": f"is{at or ' running'}{inside}{module}{last}".replace("is, at", "is at"),
            "absent": "has recorded nothing",
        }[self.kind]


def last_call_text(last: LastCall) -> str:
    """Return the last call of a rank in words."""
    return f"its last call on file is {last.name}, at {last.where or 'no known line'}"


def lives_of(dump: Dump, latest: Mapping[int, BegunStep], now_unix_ns: int) -> dict[int, Life]:
    """Return what became of the ranks of a dump.

    Args:
        dump: the dump.
        latest: the last step of each rank that has one.
        now_unix_ns: the time of this machine.
    """
    started = dump.run.get("started_unix_ns")
    least = started - _EARLIER_NS if isinstance(started, int) else 0
    pulses = {pulse.rank: pulse for pulse in ControlFiles(dump.path).pulses() if pulse.at_unix_ns >= least}
    known = sorted({*dump.expected_ranks, *latest})
    signs = {rank: _last_sign(dump, latest.get(rank), pulses.get(rank)) for rank in known}
    states = {rank: process_state(pulses[rank]) if rank in pulses else "unknown" for rank in known}
    together = _ended_together(pulses, states)
    alive = any(state in ("alive", "stopped") for state in states.values())
    now = now_unix_ns if alive else max(signs.values(), default=0)
    coverage = dump.run.get("coverage")  # written as the recording of a rank ends
    finished = coverage.get("rank") if isinstance(coverage, dict) else None
    found = {}
    for rank in known:
        pulse, step = pulses.get(rank), latest.get(rank)
        kind, error = _kind_of(pulse, step, states[rank], now - signs[rank])
        if kind == "alive" and pulse is None and rank == finished:
            kind = "closed"
        elif kind == "gone" and rank in together:
            kind = "alive"
        found[rank] = _life(rank, kind, error, (pulse, step), signs[rank])
    return found


def _life(rank: int, kind: Kind, error: str, known: tuple[Pulse | None, BegunStep | None], sign: int) -> Life:
    pulse, step = known
    is_newer = pulse is not None and (step is None or step.last is None or pulse.at_unix_ns >= step.last.unix_ns)
    line, inside = (pulse.line, pulse.inside) if pulse is not None and is_newer else ("", "")
    return Life(
        rank=rank,
        kind=kind,
        step=None if step is None else step.step,
        seen_unix_ns=sign,
        error=error.partition("\n")[0].rstrip(": ")[:_MOST_TEXT],
        line=line,
        inside="" if kind in ("raised", "exited") else inside,
        module="" if step is None else step.module,
        last=None if step is None else step.last,
        waits=pulse.waits if pulse is not None and (pulse.line or pulse.waits) else None,
        in_transfer=kind == "raised" and (_DISTRIBUTED in inside or _OF_BACKENDS.search(error) is not None),
        pulse_unix_ns=0 if pulse is None else pulse.at_unix_ns,
        is_unrecorded=kind == "alive" and pulse is not None and NOT_SELECTED in pulse.doing,
    )


def _kind_of(pulse: Pulse | None, step: BegunStep | None, state: str, silence_ns: int) -> tuple[Kind, str]:
    note = "" if step is None else step.ended_by
    if pulse is None and step is None:
        return "absent", ""
    if (pulse is not None and pulse.error) or note.endswith(" ended the block"):
        error = pulse.error if pulse is not None and pulse.error else note.removesuffix(" ended the block")
        return ("exited" if error.startswith("SystemExit") else "raised"), error
    if note:
        return "failed", note
    if pulse is not None and pulse.closed:
        return "closed", ""
    if state in ("gone", "stopped"):
        return state, ""  # type: ignore[return-value]
    if pulse is not None and silence_ns > _MISSED_BEATS * pulse.interval_ms * 10**6:
        return "silent", ""
    return "alive", ""


def _last_sign(dump: Dump, step: BegunStep | None, pulse: Pulse | None) -> int:
    """Return when a rank last wrote something; of one whose recording has ended, when it did."""
    if pulse is not None and pulse.closed:
        return pulse.at_unix_ns
    signs = [0 if pulse is None else pulse.at_unix_ns]
    if step is not None:
        signs += [step.begun_unix_ns, 0 if step.last is None else step.last.unix_ns]
        signs += [meet.begun_unix_ns for meet in step.open]
        try:
            index = dump.path / f"step{step.step}" / f"rank{step.rank}" / INDEX_FILE
            signs.append(index.stat().st_mtime_ns if not step.committed else 0)
        except OSError:
            pass
    return max(signs)


def _ended_together(pulses: Mapping[int, Pulse], states: Mapping[int, str]) -> Sequence[int]:
    """Return the ranks that are gone, if all of which no end is known are, and gave signs of life until the same time.

    Signs within a beat and a half of the last one are no earlier than it.
    """
    still_open = [pulse for pulse in pulses.values() if not pulse.closed]
    if len(still_open) < 2 or any(states.get(pulse.rank) != "gone" for pulse in still_open):
        return ()
    last = max(pulse.at_unix_ns for pulse in still_open)
    return [p.rank for p in still_open if last - p.at_unix_ns <= 1.5 * p.interval_ms * 10**6]
