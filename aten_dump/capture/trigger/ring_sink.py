"""A Sink that holds back what it is given, and passes it on only when something happens.

Theory of operation
    Steps are recorded as ever, into memory (`held_steps`). Calls are numbered through the run. When the trigger fires
    at a call (`decisions`), those of the window around it, `trigger_before` calls before and `trigger_after` after, go
    to the real sink with what they name. The window may reach into the step before or the next one; a step that no
    window touches leaves no file.

    The trigger decides about a call when what it asks of its tensors is known (`measured`): at once on the CPU, some
    calls later on a device. Until then calls are held beyond the window. It fires once in a step at most.

    Ranks write the same windows. Whose trigger fires leaves a signal (`rank_signals`) of the step and the call's
    position in it; the others look for signals at the end of a step and from a thread of their own, which also writes,
    since the program may hang by then: the rank that made the NaN has often ended. To have what a signal asks for,
    each of several ranks holds the calls of this step and the last and `trigger_before` more, up to
    `held_steps.HISTORY` of them; calls that had gone, or whose step's files are complete already, are missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from ...config import DumpConfig
from ...errors import FormatError
from ...store import records as r
from ...store.op_names import UNSCALE_GRADIENTS
from ...store.sink import Fill, Job, Sink, named
from ...store.writing.host_bytes import HostBytes
from ..data.keeper import Observe
from ..memory.storages import StorageState
from .against import Against
from .conditions import Cause, make_trigger
from .decisions import Decisions
from .held_bytes import HeldBytes
from .held_call import HeldCall
from .held_step import HeldStep
from .held_steps import HeldSteps
from .rank_signals import RankSignals, Signal, SignalListener
from .windows import Quota, why_written

_MOST_JOBS: Final = 64
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
        self.against = None if config.against is None else Against(config, rank)
        self._decisions = Decisions(
            self.against or make_trigger(config), config.trigger_bytes, in_order=self.against is not None
        )
        self._jobs: list[Job] = []  # hashes that are on their way from a device
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
            step = self._steps.begin(header)
            self._decisions.begin_step(step)
            why = "" if self.against is None else self.against.begin(step)
            if why:
                step.take(r.Note(r.NOTE, "against", why, 1))
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
            if self.against is not None and self.against.difference is not None and not self._steps.has_windows:
                return 0
            return self._bytes.keep(dtype, shape, nbytes, fill)

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Copy bytes; see `store`."""
        return self.store(dtype, shape, nbytes, HostBytes.of(get()))

    def later(self, job: Job, nbytes: int) -> None:
        """Run the job at once: a trigger may wait for what it finds. Hashes may be some calls late."""
        self._jobs.append(job)
        if self.against is None or len(self._jobs) >= _MOST_JOBS:
            self._run_jobs()

    def _run_jobs(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            for record in job():
                self.emit(record)

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Call `tick` before another rank's window is written."""
        self._tick = tick

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Decide about the calls of the step, and complete its files if there are any."""
        self._end_step(seconds)

    def _end_step(self, seconds: dict[str, float], is_dropped: bool = False) -> None:
        if self._listener is not None:
            self._listener.raise_error()
        self._run_jobs()
        with self._lock:
            step = self._steps.current
            if step is None:
                return
            for call, cause in self._decisions.at_the_end(self._bytes.copied_bytes):
                self._on_cause(step, call, cause)
            ended = None if self.against is None else self.against.at_the_end()
            if ended is not None:
                self._on_cause(step, *ended)
            if self._signals is not None:
                self._answer(self._signals.read())
            if step.is_open and step.tables.has_op(UNSCALE_GRADIENTS):
                step.take(r.Note(r.NOTE, "gradient_scaler", _SCALER_NOTE, 1))
            self._steps.end(seconds, is_dropped)

    def drop_step(self) -> None:
        """Complete the step: it leaves no file unless a window touches it."""
        self._end_step({}, is_dropped=True)

    def settle(self, *, wait: bool) -> None:
        """Start writing what was passed on; `wait` for it too."""
        self._sink.settle(wait=wait)

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
            if self.against is not None:
                step.take(r.Note(r.NOTE, "difference", cause.why, 1))
            return
        why = self._quota.lets(cause)
        if why is not None:
            self._fire(step, Signal(self._rank, step.number, call.position - step.before, call.record.id, why))

    # -- firing

    def _fire(self, step: HeldStep, signal: Signal) -> None:
        """Write the window that a signal of this rank asks for and signal the others; join one that was first."""
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
            self._answer(signals)  # an error ends the listener's thread, and is reported at the next end of a step
