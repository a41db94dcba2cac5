"""A Sink that holds back what it is given, and passes it on only when something happens.

Theory of operation
    Steps are recorded as ever, into memory (`HeldSteps`). Calls are numbered through the run. When the trigger fires
    at a call (`decisions`), those of the window around it, `trigger_before` calls before and `trigger_after` after, go
    to the real sink with what they name. The window may reach into the step before or the next one; a step that no
    window touches leaves no file.

    The trigger decides about a call when what it asks of its tensors is known (`measured`): at once on the CPU, some
    calls later on a device. Until then calls are held beyond the window. It fires once in a step at most.

    Ranks write the same windows. Whose trigger fires leaves a signal (`rank_signals`) of the step and the call's
    position in it; the others look for signals at the end of a step and from a thread of their own, which also writes,
    since the program may hang by then: the rank that made the NaN has often ended. To have what a signal asks for,
    each of several ranks holds the calls of this step and the last and `trigger_before` more, up to
    `HISTORY` of them; calls that had gone, or whose step's files are complete already, are missing.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ...config import DumpConfig
from ...errors import FormatError
from ...store import records as r
from ...store.op_names import UNSCALE_GRADIENTS
from ...store.records import NOTE, Note
from ...store.sink import Fill, Job, Sink, named
from ...store.threads.bell import Bell
from ...store.threads.bounded_thread import BoundedThread
from ...store.writing.host_bytes import HostBytes
from ..data.keeper import Observe
from ..memory.storages import StorageState
from .conditions import Cause, make_trigger
from .decisions import Decisions
from .held_bytes import HeldBytes
from .held_step import HeldCall, HeldStep
from .rank_signals import RankSignals, Signal

HISTORY: Final = 100_000  # calls that one of several ranks holds for the sake of the others

_POLL_SECONDS: Final = 0.5

_SCALER_NOTE: Final = (
    "a gradient scaler was at work in this step: it tries how large the loss may be scaled before gradients overflow, "
    "and skips the optimizer's step when they do; Inf and NaN that began in backward are no error if that is rare"
)


class RingSink:
    """Keeps the last calls in memory until a trigger fires.

    It has more than twenty methods as half of them are those of a Sink.
    """

    def __init__(self, sink: Sink, config: DumpConfig, shared: Path | None = None, rank: int = 0) -> None:
        """Begin.

        Args:
            sink: what the windows are written to; closed with this one.
            config: says what the trigger is, and how much is held.
            shared: the folder of the dump, where there are other ranks.
            rank: this one.

        Raises:
            StoreError: old signals in the folder cannot be removed.
        """
        self._sink = sink
        self._rank = rank
        self._lock = threading.RLock()
        self._bytes = HeldBytes(config.trigger_bytes)
        self._steps = HeldSteps(config, self._bytes, sink, has_others=shared is not None)
        self._decisions = Decisions(make_trigger(config), config.trigger_bytes)
        self._quota = Quota(config.trigger_times)
        self._fired_in = -1  # the step in which a trigger fired last
        self._early: list[Signal] = []  # of steps that this rank has not begun
        self._tick: Callable[[], None] | None = None
        self._signals = None if shared is None else RankSignals(shared, rank)
        self._listener = None if self._signals is None else SignalListener(self._signals, rank, self._on_signals)

    @property
    def held_bytes(self) -> int:
        """Bytes of tensors that are held back now; at most ``DumpConfig.trigger_bytes``."""
        return self._bytes.nbytes

    @property
    def observe(self) -> Observe | None:
        """What is to be shown every tensor; None where the trigger needs none of them."""
        return self._see if self._decisions.wants_tensors else None

    # -- the Sink

    def begin_step(self, header: r.Header) -> None:
        """Start a step; the real sink hears of it when a window touches it."""
        with self._lock:
            self._decisions.begin_step(self._steps.begin(header))
            early, self._early = self._early, []
            self._answer(early)

    def emit(self, record: tuple[Any, ...]) -> None:
        """Hold a record back, or pass it on."""
        with self._lock:
            step = self._steps.current
            if step is None:
                return
            if record[0] == r.CALL:
                self._on_call(step, named(record))
            else:
                step.take(named(record))

    def wait_for_room(self) -> None:
        """Wait for the real sink, which has no more than what was passed on."""
        self._sink.wait_for_room()

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Copy bytes; the ones that were used longest ago go when there are too many."""
        assert not hash_of, "with a trigger, hashes are taken when values are seen"
        with self._lock:
            return self._bytes.keep(dtype, shape, nbytes, fill)

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Copy bytes; see `store`."""
        return self.store(dtype, shape, nbytes, HostBytes.of(get()))

    def later(self, job: Job, nbytes: int) -> None:
        """Run the job at once: a trigger may wait for what it finds."""
        for record in job():
            self.emit(record)

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Call `tick` before another rank's window is written."""
        self._tick = tick

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Decide about the calls of the step, and complete its files if there are any."""
        if self._listener is not None:
            self._listener.raise_error()
        with self._lock:
            step = self._steps.current
            if step is None:
                return
            for call, cause in self._decisions.at_the_end(self._bytes.copied_bytes):
                self._on_cause(step, call, cause)
            if self._signals is not None:
                self._answer(self._signals.read())
            if step.is_open and step.tables.has_op(UNSCALE_GRADIENTS):
                step.take(r.Note(r.NOTE, "gradient_scaler", _SCALER_NOTE, 1))
            self._steps.end(seconds)

    def drop_step(self) -> None:
        """Complete the step: it leaves no file unless a window touches it."""
        self.end_step(0, 0, {})

    def hurry(self) -> None:
        """Write now what was passed on."""
        self._sink.hurry()

    def flush(self) -> None:
        """Wait until what was passed on is on file."""
        self._sink.flush()

    def close(self) -> None:
        """Answer the signals that are there, and close the real sink."""
        try:
            if self._listener is not None:
                self._listener.close()
            with self._lock:
                if self._signals is not None:
                    self._answer(self._signals.read())
                self._steps.clear()
                self._bytes.clear()
        finally:
            self._sink.close()

    # -- calls

    def _see(self, tensor: torch.Tensor, value: int, storage: StorageState) -> None:
        with self._lock:
            self._decisions.see(tensor, value, storage)

    def _on_call(self, step: HeldStep, record: r.Call) -> None:
        held = self._steps.add(step, record)
        for call, cause in self._decisions.on_call(held, self._bytes.copied_bytes):
            self._on_cause(step, call, cause)
        self._steps.forget(held.position, self._decisions.oldest_undecided(held.position))

    def _on_cause(self, step: HeldStep, call: HeldCall, cause: Cause) -> None:
        """The trigger fires at a call: write the window around it, once in a step and as often as the quota lets."""
        if self._fired_in == step.number:
            return
        why = self._quota.lets(cause)
        if why is not None:
            self._fire(step, Signal(self._rank, step.number, call.position - step.before, call.record.id, why))

    # -- firing

    def _fire(self, step: HeldStep, signal: Signal) -> None:
        """Write the window that a signal of this rank asks for and tell the others; join one that was first."""
        if self._signals is not None:
            self._answer(self._signals.read())
            if self._fired_in == step.number:
                return
            try:
                self._signals.write(signal)
            except (OSError, FormatError) as error:
                step.take(r.Note(r.NOTE, "trigger", f"the other ranks could not be reached: {error}", 1))
        self._write_window(step, signal)

    def _answer(self, signals: list[Signal]) -> None:
        """Write the windows that other ranks have asked for."""
        for signal in signals:
            step = self._steps.numbered(signal.step)
            last = self._steps.last
            if step is not None:
                self._write_window(step, signal)
            elif last is None or signal.step > last.number:
                self._early.append(signal)
            else:
                last.take(why_written(signal, None, "no calls, this rank holds none any more,"))

    def _write_window(self, center: HeldStep, signal: Signal) -> None:
        if center is self._steps.current:
            self._fired_in = center.number
        self._steps.write_window(center, signal)

    def _on_signals(self, signals: list[Signal]) -> None:
        """Answer other ranks from the listener's thread."""
        if self._tick is not None:
            self._tick()
        with self._lock:
            self._answer(signals)  # an error ends the listener's thread, and is told at the next end of a step


class SignalListener:
    """Looks for signals of other ranks now and then, and hands them on."""

    def __init__(self, signals: RankSignals, rank: int, heard: Callable[[list[Signal]], None]) -> None:
        self._signals = signals
        self._heard = heard
        self._closing = False
        self._wake = Bell()
        self._thread = BoundedThread(self._run, f"aten_dump-trigger-{rank}")
        self._thread.start()

    def raise_error(self) -> None:
        """Raise what has ended the thread, if it was an error.

        Raises:
            StoreError: what was heard could not be read or written.
        """
        self._thread.raise_error()

    def close(self) -> None:
        """End the thread.

        Raises:
            StoreError: it writes what was heard, and the disk hangs; or it has ended by an error.
        """
        self._closing = True
        self._wake.ring()
        self._thread.wait(lambda: "what other ranks have asked for is")

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_POLL_SECONDS)
            found = [] if self._closing else self._signals.read()
            if found:
                self._heard(found)


class HeldSteps:
    """The step in progress, and those before it that a window may still reach."""

    def __init__(self, config: DumpConfig, held_bytes: HeldBytes, sink: Sink, has_others: bool) -> None:
        """Begin.

        Args:
            config: says how far windows reach.
            held_bytes: keeps the bytes of tensors.
            sink: is written to.
            has_others: there are other ranks, which may ask for a window of calls long past.
        """
        self._config = config
        self._bytes = held_bytes
        self._sink = sink
        self._has_others = has_others
        self._steps: deque[HeldStep] = deque()
        self._windows: list[Window] = []  # those that calls to come may be in
        self.current: HeldStep | None = None

    def begin(self, header: r.Header) -> HeldStep:
        """Begin a step."""
        before = 0
        if self._steps:
            last = self._steps[-1]
            before = last.before + last.count
            if last.number + 1 != header.step:  # calls that were not recorded lie between
                self.clear()
                self._windows.clear()
        statistics = self._config.statistics if self._config.wants_statistics else ()
        step = self.current = HeldStep(header, before, self._bytes, self._sink, statistics)
        self._steps.append(step)
        return step

    def end(self, seconds: dict[str, float]) -> None:
        """End the step in progress."""
        step, self.current = self.current, None
        if step is not None:
            step.end(seconds)

    def clear(self) -> None:
        """Drop all steps."""
        self._steps.clear()

    def numbered(self, number: int) -> HeldStep | None:
        """Return the step of a number; None where it is not held."""
        return next((step for step in self._steps if step.number == number), None)

    @property
    def last(self) -> HeldStep | None:
        """The last step that has begun; None before the first."""
        return self._steps[-1] if self._steps else None

    def add(self, step: HeldStep, record: r.Call) -> HeldCall:
        """Take a call that has ended, and write it if it is in a window, or around a call that is written."""
        around = step.is_around_written(record)
        held = step.add(record)
        window = self._window_of(held.position)
        if window is not None or around:
            if window is not None and not step.is_open:
                step.open([why_written(window.signal, step.number, "calls around it")])
            step.write_newest()
        return held

    def _window_of(self, position: int) -> Window | None:
        """Return a window that a new call is in."""
        if not self._windows:
            return None
        self._windows = [window for window in self._windows if window.last >= position]
        return next((window for window in self._windows if window.first <= position), None)

    def forget(self, newest: int, oldest_undecided: int) -> None:
        """Drop calls that no window can reach any more.

        Args:
            newest: the position of the last call.
            oldest_undecided: of the oldest call that the trigger may still fire at.
        """
        before = self._config.trigger_before
        keep_from = newest - before
        if self._has_others:
            last_step = self._steps[-2].before if len(self._steps) > 1 else 0
            keep_from = min(keep_from, max(last_step - before, keep_from - HISTORY))
        keep_from = min(keep_from, oldest_undecided - before)
        while self._steps:
            oldest = self._steps[0]
            while oldest.calls and oldest.calls[0].position < keep_from:
                oldest.drop_oldest()
            if oldest is self.current or oldest.before + oldest.count >= keep_from:
                return
            self._steps.popleft()

    def write_window(self, center: HeldStep, signal: Signal) -> None:
        """Write what is held of a window, and see that what comes of it is written."""
        position = center.before + signal.position
        after = self._config.trigger_after
        window = Window(position - self._config.trigger_before, position + after, signal)
        touched = [one for one in self._steps if any(window.holds(call.position) for call in one.calls)]
        before = sum(window.first <= call.position < position for one in touched for call in one.calls)
        self._windows.append(window)
        for one in touched:
            if one is center:
                what = f"{before} calls before it and {after} after it"
            else:
                what = f"calls {'before' if one.number < center.number else 'after'} it"
            self._write(one, window, why_written(signal, one.number, what))

    def _write(self, step: HeldStep, window: Window, note: r.Note) -> None:
        current = self.current
        if step.can_be_written and (step is current or current is None or not current.is_open):
            step.write(window.first, window.last, note)
        elif current is not None:
            what = f"no calls of step {step.number}, whose files were complete,"
            current.take(why_written(window.signal, current.number, what))


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


def why_written(signal: Signal, step: int | None, what: str) -> Note:
    """Say in the notes of a step (None: of another one) why calls of it were written."""
    of_step = "" if step == signal.step else f" of step {signal.step}"
    where = f"call {signal.call}{of_step}"
    return Note(NOTE, "trigger", f"{signal.why}: {where}, rank {signal.rank}; {what} were written", 1)
