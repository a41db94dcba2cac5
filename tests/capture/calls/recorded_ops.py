"""The ops and Python-level calls of a step on a sink in memory; a test runs what they record itself."""

from __future__ import annotations

from typing import Any

from aten_dump import DumpConfig
from aten_dump.capture.autograd.graph_links import GraphLinks
from aten_dump.capture.autograd.node_tags import NodeTags
from aten_dump.capture.calls.ops import Ops
from aten_dump.capture.calls.python_calls import PythonCalls
from aten_dump.capture.data.keeper import Keeper
from aten_dump.capture.naming.call_name import API, CallName
from aten_dump.capture.step.collectives import Flights
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.capture.step.step import Step
from aten_dump.capture.step.threads import ThreadState
from aten_dump.capture.values.unseen_writes import UnseenWrites
from aten_dump.capture.values.value_table import ValueTable
from aten_dump.store import records as r
from tests.capture.step.steps import Told
from tests.store.memory_sink import MemorySink


class Recorded:
    """One step: what records it, what it has recorded, and who was told of failures."""

    def __init__(self, **config: Any) -> None:
        chosen = DumpConfig(path="unused", **{"stacks": False, "data": "structure", **config})
        self.sink, self.told = MemorySink(), Told()
        self.step = step = Step(chosen, self.sink, self.told)
        seconds = dict.fromkeys(("capture", "statistics", "hash", "copy"), 0.0)
        self.values = ValueTable(
            self.sink.emit,
            Keeper(chosen, self.sink, seconds),
            step.interner,
            step.coverage,
            UnseenWrites(seconds) if chosen.dedup == "content" else None,
        )
        self.tags = NodeTags(step.threads)
        self.flights = Flights(self.values.storages, self.sink.emit)
        self.links = GraphLinks(step, self.values, self.tags, lambda node, tag: None)
        self.ops = Ops(chosen, step, self.values, self.tags, self.flights)
        self.calls = PythonCalls(chosen, step, self.values, self.links, self.flights)

    @property
    def thread(self) -> ThreadState:
        return self.step.threads.main

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an op that writes nothing, and have it recorded."""
        op = self.ops.start(self.thread, func, ())
        assert op is not None, f"{func} is to be watched"
        result = func(*args, **kwargs)
        op.end(args, kwargs, result, None)
        return result

    def under(self, name: CallName, raw: tuple[Any, ...] = (), args: list[Any] | None = None) -> OpenCall:
        """Open a Python-level call by hand."""
        call = OpenCall(self.step.next_id(), API, name, self.step.top(self.thread))
        call.raw, call.args = raw, args or []
        self.thread.stack.append(call)
        return call

    def ended(self) -> list[r.Call]:
        """The calls that are recorded so far."""
        found: list[r.Call] = self.sink.of(r.CALL)
        return found

    def last(self) -> r.Call:
        return self.ended()[-1]

    def fail(self) -> None:
        """Let the sink fail from now on, as a full disk does."""

        def emit(record: tuple[Any, ...]) -> None:
            raise OSError("no room")

        self.step.emit = emit
        self.values._emit = self.values._records._emit = self.step.interner._emit = emit

    def notes(self) -> dict[str, int]:
        return {note.code: note.count for note in self.step.coverage.notes()}
