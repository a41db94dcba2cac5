"""Graphs of a device (`torch.cuda.CUDAGraph` and its like): captured as structure, replayed as one call.

Theory of operation
    While a graph is captured, ops are dispatched and nothing runs: results hold what their memory held before. A copy
    or a reduction by the recorder would become part of the graph, and a wait of the writer's thread may make the device
    end the capture with an error. So before a capture begins, all pending work on a device is sent and waited for, and
    until the capture has ended the recorder keeps no data. No contents are trusted then: nothing was computed.

    A replay launches kernels without dispatch. It is one call (`unseen_runs`), which is given the tensors that the
    captured ops were seen to read, and makes those that they made or wrote, as far as they are there.

    Which classes are graphs, and whether a stream is being captured, is asked of torch's device modules by feature.
    What stands before their methods stays from the first step of a recording to its last: what an earlier step has
    left to the writer's thread must be waited for too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..calls.captured import CapturedGraph
from ..devices import graph_classes, is_capturing
from ..interrupts import deliver, held, runs_program
from ..naming.call_name import CallName
from ..recorder import Watch
from ..torch_internals.patches import Patch
from .unseen_runs import is_seen, run_as_one_call


class DeviceGraphs:
    """Knows when a graph is captured and replayed, while installed."""

    def __init__(self, watch: Watch, settle: Callable[[], None]) -> None:
        """Begin; `settle` waits until no work of the recorder is pending on a device."""
        self._watch = watch
        self._settle = settle
        self._patches: list[Patch] = []
        self._graphs: WeakKeyDictionary[Any, CapturedGraph] = WeakKeyDictionary()

    def install(self) -> None:
        """Begin to watch; a capture may be under way."""
        for owner in graph_classes():
            self._wrap(owner, "capture_begin", self._beginning)
            self._wrap(owner, "capture_end", self._ending)
            self._wrap(owner, "replay", self._replaying)
        if is_capturing():
            self._watch.capture(CapturedGraph())

    def remove(self) -> None:
        """Leave torch as it was."""
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = []

    def _wrap(self, owner: type, name: str, run: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        @runs_program
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(functools.partial(original, self, *args, **kwargs), self)
            if held:
                deliver()
            return result

        self._patches.append(Patch(owner, name, wrapper))

    @runs_program
    def _beginning(self, begin: Callable[[], Any], graph: Any) -> Any:
        captured = self._graphs[graph] = CapturedGraph()
        self._watch.capture(captured)
        self._settle()
        try:
            return begin()
        except BaseException:
            self._watch.capture(None)
            raise

    @runs_program
    def _ending(self, end: Callable[[], Any], graph: Any) -> Any:
        try:
            return end()
        finally:
            self._watch.capture(None)

    @runs_program
    def _replaying(self, replay: Callable[[], Any], graph: Any) -> Any:
        recorder = self._watch.recorder
        if recorder is None or not is_seen(recorder):
            return replay()
        captured = self._graphs.get(graph) or CapturedGraph()
        kind = type(graph)
        name = CallName(f"{kind.__module__}.{kind.__qualname__}.replay", "Torch", f"{kind.__name__}.replay")
        returned = []

        def run() -> Any:
            returned.append(replay())
            return captured.outputs()

        run_as_one_call(recorder, name, "graph_replay", ((captured.inputs(),), {}), run)
        return returned[0]
