"""Waits for collectives, resizes of storages, callbacks of futures: what no dispatch mode sees.

While a step is recorded, a few methods of torch's classes are wrapped, process-wide, as ``nn.Module.__call__`` is (see
`module_calls`). Each wrapper calls the original with what it was given, returns what it returned and raises what it
raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from ..interrupts import deliver, held, runs_program
from ..recorder import StepRecorder, Watch
from ..step.collectives import Flight
from ..step.open_calls import OpenCall
from ..torch_internals.engine import NativeFuture, len_dispatch_stack
from ..torch_internals.patches import Patch
from .inner_ops import open_again

_WAITS: Final = ("wait", "synchronize", "block_current_stream")
_CALLBACKS: Final = ("then", "add_done_callback")


class Waits:
    """Wraps the methods while installed; also while the step is paused, as what was started before may land then."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Wrap; does nothing when wrapped already."""
        if self._patches:
            return
        self._wrap(torch.UntypedStorage, "resize_", self._resizing)
        if torch.distributed.is_available():
            for name in _WAITS:
                self._wrap(torch.distributed.Work, name, self._waiting)
            for name in _CALLBACKS:
                self._wrap(NativeFuture, name, self._calling_back)

    def remove(self) -> None:
        """Put back what was there."""
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = []

    def _wrap(self, owner: Any, name: str, run: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return  # a torch without it

        @functools.wraps(original)
        @runs_program
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(original, self, *args, **kwargs)
            if held:
                deliver()
            return result

        self._patches.append(Patch(owner, name, wrapper))

    def _own(self, recorder: StepRecorder, action: Callable[[], None]) -> None:
        """Run the recorder's own code after the program's: its errors are the recorder's."""
        thread = recorder.step.here.state
        if thread.own.depth or self._watch.in_step is not recorder:
            return
        try:
            with thread.own:
                action()
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            recorder.step.failed(error)

    @runs_program
    def _waiting(self, original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._watch.in_step
        flights = recorder.flights.of_work(work) if recorder is not None else []
        for flight in flights:
            flight.waiting += 1
        inside = self._open_inside(recorder, flights)
        try:
            result = original(work, *args, **kwargs)
        finally:
            for flight in flights:
                flight.waiting -= 1
            if recorder is not None and inside is not None:
                recorder.step.drop(recorder.step.here.state, inside)
        if recorder is not None and flights:
            self._own(recorder, lambda: recorder.flights.land_all(flights))
        return result

    def _open_inside(self, recorder: StepRecorder | None, flights: list[Flight]) -> OpenCall | None:
        """Make what the wait itself runs (gloo copies in the thread that waits) part of the collective."""
        if recorder is None or self._watch.recorder is not recorder or not flights or flights[0].op is None:
            return None
        thread = recorder.step.here.state
        return None if thread.own.depth else open_again(flights[0].op, thread)

    @runs_program
    def _resizing(self, original: Callable[..., Any], storage: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._watch.in_step
        before = storage.nbytes() if recorder is not None else 0
        result = original(storage, *args, **kwargs)
        if recorder is not None:
            self._own(recorder, lambda: recorder.values.storages.resized(storage, before))
        return result

    def _calling_back(
        self, original: Callable[..., Any], future: Any, callback: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        recorder = self._watch.in_step
        if recorder is None:
            return original(future, callback, *args, **kwargs)

        @functools.wraps(callback, updated=())
        @runs_program
        def called(*given: Any, **named: Any) -> Any:
            before: dict[int, int] = {}
            if len_dispatch_stack() == 0:
                self._own(recorder, lambda: before.update(recorder.values.storages.unwritten_contents()))
            try:
                return callback(*given, **named)
            finally:
                self._own(recorder, lambda: recorder.callback_ran(before))

        return original(future, called, *args, **kwargs)
