"""The ring: the steps that are held back, the calls that it drops, the windows that are written out of it."""

from __future__ import annotations

from collections import deque
from typing import Final

from ...config import DumpConfig
from ...store import records as r
from ...store.sink import Sink
from .held_bytes import HeldBytes
from .held_call import HeldCall
from .held_step import HeldStep, WholeStep
from .rank_signals import Signal
from .windows import Window, why_written

HISTORY: Final = 100_000  # calls that one of several ranks holds for the sake of the others


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
        self._code = "trigger" if config.against is None else "difference"  # of notes

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
        kind = HeldStep if self._config.against is None else WholeStep
        step = self.current = kind(header, before, self._bytes, self._sink, statistics)
        self._steps.append(step)
        return step

    def end(self, seconds: dict[str, float], is_dropped: bool = False) -> None:
        """End the step in progress; one that is dropped leaves no files if nothing of it was written."""
        step, self.current = self.current, None
        if step is not None:
            step.end(seconds, is_dropped)

    @property
    def has_windows(self) -> bool:
        """True if calls to come are in a window."""
        return bool(self._windows)

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
            if self._config.against is not None:
                what = f"the bytes of {what}"
            self._write(one, window, why_written(signal, one.number, what, self._code))

    def _write(self, step: HeldStep, window: Window, note: r.Note) -> None:
        current = self.current
        if step.can_be_written and (step is current or current is None or not current.is_open):
            step.write(window.first, window.last, note)
        elif current is not None:
            what = f"no calls of step {step.number}, whose files were complete,"
            current.take(why_written(window.signal, current.number, what))
