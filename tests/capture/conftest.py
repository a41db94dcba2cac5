"""Every test here runs on one thread and must leave the process as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aten_dump.capture.values.value_table import ValueTable
from tests.capture.values.tables import new_table
from tests.recorded_step import no_mode_left, one_thread, record
from tests.store.memory_sink import MemorySink

__all__ = ["no_mode_left", "one_thread", "record"]


@pytest.fixture(autouse=True)
def _quiet_process(one_thread: None, no_mode_left: None) -> None:
    pass


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def values(sink: MemorySink) -> Iterator[ValueTable]:
    table = new_table(sink, "tensor")
    yield table
    table.clear()
