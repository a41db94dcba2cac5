"""A table of values on a sink in memory; compiled functions take no stand-in for it."""

from __future__ import annotations

from aten_dump import DumpConfig
from aten_dump.capture.data.keeper import Keeper
from aten_dump.capture.naming.interned_tables import Interner
from aten_dump.capture.unseen import Coverage
from aten_dump.capture.values.value_table import ValueTable
from tests.store.memory_sink import MemorySink


def new_table(sink: MemorySink, data: str = "structure") -> ValueTable:
    """Return the table of a step that keeps `data`; its records go to `sink`."""
    seconds = {"statistics": 0.0, "hash": 0.0, "copy": 0.0}
    keeper = Keeper(DumpConfig(path="unused", data=data), sink, seconds)  # type: ignore[arg-type]
    return ValueTable(sink.emit, keeper, Interner(sink.emit), Coverage())
