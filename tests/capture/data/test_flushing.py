"""What is gathered is sent by its threads and by ticks; a tick never waits. Told of batches of small tensors."""

from __future__ import annotations

import threading

import pytest
import torch

from aten_dump.capture.data.flushing import Flushable
from aten_dump.capture.data.small_tensor_batches import Batches
from aten_dump.capture.data.wanted_data import WantedData
from aten_dump.store.memory_sink import MemorySink


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def letters(sink: MemorySink) -> Batches:
    """Gathers bytes without an end."""
    return Batches(sink, WantedData(bytes=True, statistics=(), hash=""), 1000, 1 << 20)


def gather(letters: Batches, data: bytes) -> None:
    letters.add(torch.uint8, stored=True, facts=False, value=1, data=data)


def test_a_tick_sends_what_was_gathered_and_nothing_else(letters: Batches, sink: MemorySink) -> None:
    assert isinstance(letters, Flushable)
    letters.tick()
    assert sink.records == []
    gather(letters, b"ab")
    letters.tick()
    letters.tick()
    assert sink.blobs == {1: b"ab"}


def test_a_tick_leaves_it_to_the_thread_that_is_at_it(letters: Batches, sink: MemorySink) -> None:
    gather(letters, b"ab")
    with letters._lock:
        ticks = threading.Thread(target=letters.tick, daemon=True)
        ticks.start()
        ticks.join(20)
        assert not ticks.is_alive(), "the writer's thread waits for one that may be waiting for it"
    assert sink.blobs == {}
    letters.flush()
    assert sink.blobs == {1: b"ab"}
