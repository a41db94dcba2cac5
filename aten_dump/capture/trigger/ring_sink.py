"""A Sink that holds back what it is given, and passes it on only when something happens.

Theory of operation
    Steps are recorded as ever, into memory (`held.py`). Calls are numbered through the run. When the trigger fires at
    a call, those of the window around it, `trigger_before` calls before and `trigger_after` after, go to the real sink
    with what they name. The window may reach into the step before or the next one; a step that no window touches
    leaves no file.

    The trigger decides about a call when the looks at its tensors are there (`looks.py`): at once on the CPU, some
    calls later on a device. Until then calls wait in the ring beyond the window. It fires once in a step at most.

    Ranks write the same windows. Whose trigger fires leaves a mark (`marks.py`) of the step and the call's position in
    it; the others look for marks at the end of a step and from a thread of their own, which also writes, since the
    program may hang by then: the rank that made the NaN has often ended. To have what a mark asks for, each of several
    ranks holds the calls of this step and the last and `trigger_before` more, up to HISTORY of them; calls that had
    gone, or whose step's files are complete already, are missing.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ...config import DumpConfig
from ...errors import StoreError
from ...store import records as r
from ...store.op_names import UNSCALE_GRADIENTS
from ...store.sink import Fill, Job, Sink
from ...store.writing.host_bytes import HostBytes
from ..data.keeper import Observe
from ..memory.storages import StorageState
from .conditions import Cause, Stats, make_trigger
from .held_bytes import HeldBytes
from .held_call import HeldCall
from .held_step import HeldStep
from .nonfinite_checks import Look, Looks
from .rank_signals import Mark, Marks

HISTORY: Final = 100_000  # calls that one of several ranks holds for the sake of the others
_MOST_WAITING: Final = 4096  # calls whose statistics have not come; the oldest is then decided without
_POLL_SECONDS: Final = 0.5
_SCALER_NOTE: Final = (
    "a gradient scaler was at work in this step: it tries how large the loss may be scaled before gradients overflow, "
    "and skips the optimizer's step when they do; Inf and NaN that began in backward are no error if that is rare"
)


class RingSink:
    """Keeps the last calls in memory until a trigger fires."""

    def __init__(self, sink: Sink, config: DumpConfig, shared: Path | None = None, rank: int = 0) -> None:
        """Begin.

        Args:
            sink: what the windows are written to; closed with this one.
            config: says what the trigger is, and how much is held.
            shared: the folder of the dump, where there are other ranks.
            rank: this one.

        Raises:
            StoreError: old marks in the folder cannot be removed.
        """
        self._sink = sink
        self._config = config
        self._rank = rank
        self._trigger = make_trigger(config)
        self._looks = self._trigger.new_looks()
        self._lock = threading.RLock()
        self._held = HeldBytes(config.trigger_bytes)
        self._looked_bytes = 0  # copied before the last look
        self._steps: deque[HeldStep] = deque()
        self._step: HeldStep | None = None  # the one in progress
        self._known: _Known
        self._waiting: deque[HeldCall] = deque()  # of the step in progress; not decided about
        self._windows: list[_Window] = []  # those that calls to come may be in
        self._quota = _Quota(config.trigger_times)
        self._facts = 0  # statistics that were known when waiting calls were looked through last
        self._fired_in = -1  # the step in which a trigger fired last
        self._marks = None if shared is None else Marks(shared, rank)
        self._early: list[Mark] = []  # of steps that this rank has not begun
        self._tick: Callable[[], None] | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if self._marks is not None:
            self._thread = threading.Thread(target=self._poll, name=f"aten_dump-trigger-{rank}", daemon=True)
            self._thread.start()

    @property
    def held_bytes(self) -> int:
        """Bytes of tensors that are held back now; at most ``DumpConfig.trigger_bytes``."""
        return self._held.nbytes

    @property
    def observe(self) -> Observe | None:
        """What is to be shown every tensor; None where the trigger needs none of them."""
        return None if self._looks is None else self._look

    # -- the Sink

    def begin_step(self, header: r.Header) -> None:
        """Start a step; the real sink hears of it when a window touches it."""
        with self._lock:
            before = 0
            if self._steps:
                last = self._steps[-1]
                before = last.before + last.count
                if last.number + 1 != header.step:  # calls that were not recorded lie between
                    self._steps.clear()
                    self._windows.clear()
            statistics = self._config.statistics if self._config.wants_statistics else ()
            self._step = HeldStep(header, before, self._held, self._sink, statistics)
            self._steps.append(self._step)
            self._known = _Known(self._step, self._looks)
            self._trigger.begin_step()
            if self._looks is not None:
                self._looks.begin_step()
            early, self._early = self._early, []
            self._answer(early)

    def emit(self, record: tuple[Any, ...]) -> None:
        """Hold a record back, or pass it on."""
        with self._lock:
            step = self._step
            if step is None:
                return
            if record[0] == r.CALL:
                assert isinstance(record, r.Call)
                self._on_call(step, record)
            else:
                step.keep(record)

    def wait_for_room(self) -> None:
        """Wait for the real sink, which has no more than what was passed on."""
        self._sink.wait_for_room()

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Copy bytes; the ones that were used longest ago go when there are too many."""
        assert not hash_of, "with a trigger, hashes are taken when values are seen"
        with self._lock:
            return self._held.keep(dtype, shape, nbytes, fill)

    def _look(self, tensor: torch.Tensor, value: int, storage: StorageState) -> None:
        """Look at a tensor for the trigger; see `Looks.take`."""
        with self._lock:
            if self._looks is not None:
                self._looks.take(tensor, value, storage)

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Copy bytes; see `store`."""
        return self.store(dtype, shape, nbytes, HostBytes.of(get()))

    def later(self, job: Job, nbytes: int) -> None:
        """Run the job at once: a trigger may wait for what it finds."""
        for record in job():
            self.emit(record)

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Have `tick` called before another rank's window is written."""
        self._tick = tick

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Decide about the calls of the step, and complete its files if there are any."""
        with self._lock:
            step = self._step
            if step is None:
                return
            self._look_now()
            self._decide(step, all_of_them=True)
            if self._marks is not None:
                self._answer(self._marks.read())
            if step.is_open and step.has_called(UNSCALE_GRADIENTS):
                step.note(r.Note(r.NOTE, "gradient_scaler", _SCALER_NOTE, 1))
            self._step = None
            step.end(seconds)

    def close(self) -> None:
        """Answer the marks that are there, and close the real sink."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._marks is not None:
                self._answer(self._marks.read())
            self._steps.clear()
        self._sink.close()

    # -- calls

    def _on_call(self, step: HeldStep, record: r.Call) -> None:
        around = step.is_around_written(record)
        held = step.add(record)
        window = self._window_of(held.position)
        if window is not None or around:
            if window is not None and not step.is_open:
                step.open([_note(window.mark, step, "calls around it")])
            step.write_newest()
        looks = self._looks
        if looks is not None and not looks and not self._waiting:  # as ever on the CPU
            self._ask(step, held)
            self._forget(held.position)
            return
        self._waiting.append(held)
        if looks:
            if not looks.is_due and self._held.copied_bytes - self._looked_bytes < self._config.trigger_bytes // 4:
                return
            self._look_now()
        self._decide(step)
        self._forget(held.position)

    def _window_of(self, position: int) -> _Window | None:
        """Return a window that a new call is in."""
        if not self._windows:
            return None
        self._windows = [window for window in self._windows if window.last >= position]
        return next((window for window in self._windows if window.first <= position), None)

    def _look_now(self) -> None:
        self._looked_bytes = self._held.copied_bytes
        if self._looks is not None:
            self._looks.collect()

    def _decide(self, step: HeldStep, all_of_them: bool = False) -> None:
        """Ask the trigger about the calls that wait, but those of which more is to come."""
        if self._looks is None and not all_of_them:
            if step.facts == self._facts and len(self._waiting) <= _MOST_WAITING:
                return  # nothing new is known
            self._facts = step.facts
        late: deque[HeldCall] = deque()
        for number, held in enumerate(self._waiting, 1 - len(self._waiting)):
            if not all_of_them and -number < _MOST_WAITING and self._trigger.awaits(held, self._known):
                late.append(held)
            else:
                self._ask(step, held)
        self._waiting = late

    def _ask(self, step: HeldStep, held: HeldCall) -> None:
        cause = self._trigger(held, step.op(held.record), self._known)
        if cause is not None and self._fired_in != step.number:
            why = self._quota.lets(cause)
            if why is not None:
                self._fire(step, held, why)

    def _forget(self, newest: int) -> None:
        """Drop calls that no window can reach any more."""
        keep_from = newest - self._config.trigger_before
        if self._marks is not None:
            last_step = self._steps[-2].before if len(self._steps) > 1 else 0
            keep_from = min(keep_from, max(last_step - self._config.trigger_before, keep_from - HISTORY))
        if self._waiting:
            keep_from = min(keep_from, self._waiting[0].position - self._config.trigger_before)
        while self._steps:
            oldest = self._steps[0]
            while oldest.calls and oldest.calls[0].position < keep_from:
                oldest.drop_oldest()
            if oldest is self._step or oldest.before + oldest.count >= keep_from:
                return
            self._steps.popleft()

    # -- firing

    def _fire(self, step: HeldStep, held: HeldCall, why: str) -> None:
        """Write the window around a call and tell the other ranks; where one of them was first, join it."""
        mark = Mark(self._rank, step.number, held.position - step.before, held.record.id, why)
        if self._marks is not None:
            self._answer(self._marks.read())
            if self._fired_in == step.number:
                return
            try:
                self._marks.write(mark)
            except OSError as error:
                step.note(r.Note(r.NOTE, "trigger", f"the other ranks could not be told: {error}", 1))
        self._write_window(step, mark)

    def _answer(self, marks: list[Mark]) -> None:
        """Write the windows that other ranks have asked for."""
        for mark in marks:
            step = next((step for step in self._steps if step.number == mark.step), None)
            if step is not None:
                self._write_window(step, mark)
            elif not self._steps or mark.step > self._steps[-1].number:
                self._early.append(mark)
            else:
                self._steps[-1].note(_note(mark, None, "no calls, this rank holds none any more,"))

    def _write_window(self, center: HeldStep, mark: Mark) -> None:
        """Write what is held of a window, and see that what comes of it is written."""
        if center is self._step:
            self._fired_in = center.number
        position = center.before + mark.position
        window = _Window(position - self._config.trigger_before, position + self._config.trigger_after, mark)
        touched = [one for one in self._steps if any(window.holds(call.position) for call in one.calls)]
        before = sum(window.first <= call.position < position for one in touched for call in one.calls)
        self._windows.append(window)
        for one in touched:
            if one is center:
                note = _note(mark, one, f"{before} calls before it and {self._config.trigger_after} after it")
            else:
                note = _note(mark, one, f"calls {'before' if one.number < center.number else 'after'} it")
            if one.can_write and (one is self._step or self._step is None or not self._step.is_open):
                one.write(window.first, window.last, note)
            elif self._step is not None:
                self._step.note(_note(mark, self._step, f"no calls of step {one.number}, whose files were complete,"))

    # -- the thread that looks for marks

    def _poll(self) -> None:
        marks = self._marks
        while marks is not None and not self._closing.wait(_POLL_SECONDS):
            found = marks.read()
            if not found:
                continue
            if self._tick is not None:
                self._tick()
            with self._lock, contextlib.suppress(StoreError):  # the sink says so again at the program's next step
                self._answer(found)


@dataclass(frozen=True, slots=True)
class _Window:
    first: int  # positions of calls in the run
    last: int
    mark: Mark

    def holds(self, position: int) -> bool:
        return self.first <= position <= self.last


@dataclass(frozen=True, slots=True)
class _Known:
    step: HeldStep
    looks: Looks | None

    @property
    def has_looks(self) -> bool:
        return self.looks is not None and self.looks.notable

    def look(self, value: int) -> Look | None:
        return None if self.looks is None else self.looks.get(value)

    def stats(self, value: int) -> Stats | None:
        return self.step.stats(value)

    def awaits_stats(self, value: int) -> bool:
        return self.step.awaits_stats(value)

    def storage(self, value: int) -> int:
        return self.step.storage(value)

    def text(self, number: int) -> str:
        return self.step.text(number)


class _Quota:
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


def _note(mark: Mark, step: HeldStep | None, what: str) -> r.Note:
    """Say in a step's notes why calls of it were written."""
    of_step = "" if step is not None and step.number == mark.step else f" of step {mark.step}"
    where = f"call {mark.call}{of_step}"
    return r.Note(r.NOTE, "trigger", f"{mark.why}: {where}, rank {mark.rank}; {what} were written", 1)
