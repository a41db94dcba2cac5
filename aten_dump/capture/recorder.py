"""The recorder of one step: puts its parts together, and does what concerns several of them.

A StepRecorder lives for one step: every table, id and hook in it ends with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from ..config import DumpConfig
from ..store.records import GRADIENT, NOTE, Gradient, Note
from ..store.sink import Sink
from .autograd.node_runs import NodeRuns
from .calls.captured import CapturedGraph
from .calls.ops import Ops
from .calls.python_calls import PythonCalls
from .calls.remarks import Remarks
from .data.keeper import Keeper, Observe
from .step.collectives import Flight, Flights
from .step.live_optimizers import LiveOptimizers
from .step.module_paths import ModulePaths
from .step.optimizer_settings import OptimizerSettings
from .step.step import Failures, Step
from .step.threads import ThreadState
from .torch_internals.compiled_autograd import compiles_passes
from .torch_internals.engine import len_dispatch_stack
from .torch_internals.mode_stack import Modes
from .values.unseen_writes import UnseenWrites
from .values.value_table import ValueTable

_SECONDS: Final = ("capture", "statistics", "hash", "copy")


class Surroundings(NamedTuple):
    """What stays from step to step around the recorders of a session."""

    paths: ModulePaths
    optimizers: LiveOptimizers
    modes: Modes  # on torch's stacks; off them, or back on, for some runs of autograd nodes
    failures: Failures  # takes the recorder's own errors
    observe: Observe | None = None  # is shown each tensor, for a trigger


class StepRecorder:
    """Records one step of one rank into a sink."""

    def __init__(self, config: DumpConfig, sink: Sink, around: Surroundings) -> None:
        self.seconds = dict.fromkeys(_SECONDS, 0.0)
        self.step = step = Step(config, sink, around.failures)
        self.values = values = ValueTable(
            sink.emit,
            Keeper(config, sink, self.seconds, around.observe),
            step.interner,
            step.coverage,
            None if config.dedup == "version" else UnseenWrites(self.seconds, sampled=config.dedup == "sample"),
        )
        self.flights = Flights(values.storages, sink.emit)
        self._runs = NodeRuns(config, step, values, around.modes, self._record_gradients)
        self.packs = self._runs.packs
        self.calls = PythonCalls(config, step, values, self._runs.links, self.flights)
        self.remarks = Remarks(step, values, self.calls)
        self.ops = Ops(config, step, values, self._runs.tags, self.flights)
        if self.packs is not None:
            self.ops.watch_closely(torch.ops.aten.detach.default)
        self.optimizers = OptimizerSettings(step, around.paths, around.optimizers)
        self._paths = around.paths
        self._keep_gradients = config.io in ("all", "output")
        self._before: dict[int, int] = {}  # see `go_unobserved`
        self._callbacks = 0  # of futures, where their ops are not seen
        self._has_compiled_passes = False
        if compiles_passes():
            self.passes_are_compiled(True)

    def begin_with(self, flights: list[Flight]) -> None:
        """Take over the collectives that the step before has left under way."""
        if flights:
            with self.step.here.state.own:
                self.flights.adopt(flights)

    def _record_gradients(self, leaves: dict[int, int]) -> None:
        """Record the gradients of parameters that a backward pass has accumulated into, by the calls that did."""
        self._paths.look_for(leaves)
        found = [(named, call) for leaf, call in leaves.items() if (named := self._paths.parameter(leaf)) is not None]
        found += [(named, 0) for named in self._paths.sharded() if id(named[1]) not in leaves]
        gradients = [(name, gradient, call) for (name, p), call in found if (gradient := p.grad) is not None]
        if self.flights.pending:
            self.flights.backward_ended(gradient for _, gradient, _ in gradients)
        for name, gradient, call in gradients:
            self.step.emit(Gradient(GRADIENT, name, self.values.value_of(gradient, self._keep_gradients), call))

    def passes_are_compiled(self, is_on: bool) -> None:
        """Compiled autograd was turned on or off: it would compile hooks on nodes."""
        with self.step.here.state.own:
            if is_on:
                self._has_compiled_passes = True
                self._runs.stand_aside()
            else:
                self._runs.come_back()

    def capture(self, graph: CapturedGraph | None) -> None:
        """A graph of a device is captured from now on; None: no more. Nothing that is captured runs."""
        with self.step.here.state.own:
            if graph is not None:
                self.step.coverage.add("device_graph")
                self.go_unobserved()
            elif self.ops.captured is not None:
                self.trust_no_memory()
            self.ops.captured = graph
            self.values.keep_data(graph is None)

    def kernels_unseen(self, name: str = "") -> None:
        """Compiled code runs a kernel that is not recorded: trust no memory that such code writes, in this step."""
        with self.step.here.state.own:
            self.step.threads.doubts = True
            if name:
                self.step.coverage.add("kernels_unseen", name)

    def callback_ran(self, before: dict[int, int]) -> None:
        """A callback of a future has run, perhaps on a thread where nothing is seen: it may have written anything."""
        if len_dispatch_stack() == 0:
            self._callbacks += 1
            self.trust_no_memory(before)

    def go_unobserved(self) -> None:
        """The program is about to run unobserved, until `trust_no_memory`."""
        self._before = self.values.storages.unwritten_contents()

    def trust_no_memory(self, before: dict[int, int] | None = None) -> None:
        """Trust no memory seen so far: the program ran unobserved. What it left as it was stays undefined."""
        self.values.storages.invalidate(self._before if before is None else before)
        self.flights.hide_again()

    def was_written(self, tensor: torch.Tensor) -> None:
        """A function of torch's that is no op has written to a tensor."""
        with self.step.here.state.own:
            self.values.storages.written(tensor)

    def flush(self) -> None:
        """Send on what was gathered of small tensors, and of those on devices."""
        with self.step.here.state.own:
            self.values.flush()

    def close(self) -> None:
        """End the step: finish what is open and let go of everything, also where nothing can be written any more."""
        thread = self.step.here.state
        with thread.own:
            for one in self.step.threads.all:
                for call in one.stack:
                    call.let_go()
            try:
                self._runs.close()
                self._finish(thread)
            finally:
                self.remarks.close()
                self.values.clear()
        self.seconds["capture"] += sum(one.own.ns for one in self.step.threads.all) / 1e9

    def _finish(self, thread: ThreadState) -> None:
        """Record what is open on a thread, and what is said of a step at its end."""
        self.step.cut_off(thread)
        for one in self.step.threads.all:  # of a device too: its last pass may have failed
            self.step.end_nodes(one, 0)
        self.flights.close()
        self.optimizers.close()
        if self._callbacks:
            message = "callbacks of futures ran on threads of torch's own: the ops in them were not seen"
            self.step.emit(Note(NOTE, "unseen", message, self._callbacks))
        if self.packs is not None:
            self.packs.close()
        if self._has_compiled_passes and self.step.calls:  # a step that was only begun lacks nothing
            self.step.coverage.add("compiled_autograd")
        self.step.report_coverage()


class Watch:
    """Which recorder records now: what all that stands in the program's way asks first."""

    __slots__ = ("_captured", "in_step", "recorder")

    def __init__(self) -> None:
        self.recorder: StepRecorder | None = None  # None while nothing is recorded
        self.in_step: StepRecorder | None = None  # of the step in progress, also while it is paused
        self._captured: CapturedGraph | None = None  # a graph of a device that is being captured

    def turn_on(self, recorder: StepRecorder) -> None:
        """Record from now on."""
        if self._captured is not recorder.ops.captured:
            recorder.capture(self._captured)
        recorder.step.is_on = True
        self.recorder = self.in_step = recorder

    def turn_off(self) -> None:
        """Record no more until `turn_on`; calls that are open stay so."""
        if self.recorder is not None:
            self.recorder.step.is_on = False
            self.recorder = None

    def passes_are_compiled(self, is_on: bool) -> None:
        """Pass on to the step in progress, if there is one, that compiled autograd was turned on or off."""
        if self.in_step is not None:
            self.in_step.passes_are_compiled(is_on)

    def capture(self, graph: CapturedGraph | None) -> None:
        """Record a capture, in the step in progress and those that begin before it has ended; None: it has ended."""
        self._captured = graph
        if self.in_step is not None:
            self.in_step.capture(graph)

    def is_busy(self) -> bool:
        """Return True if the thread that began the step is in the recorder's own code, as far as that is marked."""
        return self.in_step is not None and self.in_step.step.threads.main.own.depth > 0
