"""Records of small steps, made by hand, for the tests of the ring."""

from __future__ import annotations

from typing import Any

from aten_dump.capture.trigger.held_bytes import HeldBytes
from aten_dump.capture.trigger.held_step import HeldStep
from aten_dump.store import records as r
from aten_dump.store.memory_sink import MemorySink
from aten_dump.store.writing.host_bytes import HostBytes


def header(step: int = 0) -> r.Header:
    return r.Header(r.HEADER, r.FORMAT_VERSION, step, 0, 1, 0, 1, {})


def storage(number: int, nbytes: int = 64) -> r.Storage:
    return r.Storage(r.STORAGE, number, nbytes, 0)


def value(number: int, on: int = 0, version: int = 0, flags: int = 0, extra: Any = None) -> r.Value:
    return r.Value(r.VALUE, number, on, version, 0, 1, [4], [1], flags, extra)


def call(number: int, inputs: tuple[int, ...] = (), outputs: int | None = None, **fields: Any) -> r.Call:
    args = [(r.TREE_VALUE, one) for one in inputs]
    made = None if outputs is None else (r.TREE_VALUE, outputs)
    return r.Call(r.CALL, number, 0, 1, number, 0, 0, 0, number, 1, args=args, outputs=made)._replace(**fields)


def statistics(number: int, *numbers: Any) -> r.Statistics:
    return r.Statistics(r.STATISTICS, number, list(numbers))


def stored(held: HeldBytes, data: bytes) -> int:
    return held.keep("U8", [len(data)], len(data), HostBytes.of(data))


class Ring:
    """A held step, the bytes that it holds, and the sink that it is written to."""

    def __init__(self, most_bytes: int = 1 << 20, names: tuple[str, ...] = ()) -> None:
        self.sink = MemorySink()
        self.bytes = HeldBytes(most_bytes)
        self.step = HeldStep(header(), 0, self.bytes, self.sink, names)
        self.step.take(r.Op(r.OP, 1, 0, "aten::exp", "Aten", "exp", ["self"]))

    def take(self, *records: Any) -> None:
        for record in records:
            if isinstance(record, r.Call):
                self.step.add(record)
            else:
                self.step.take(record)

    def written(self) -> list[tuple[int, int]]:
        """What the sink was given, as kinds and ids (of a fact, its value's)."""
        return [(record[0], record[1]) for record in self.sink.records]
