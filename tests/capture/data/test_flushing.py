"""What is gathered is sent by its threads and by ticks; a tick never waits. Told of batches of small tensors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from aten_dump.capture.data.flushing import Flushable
from aten_dump.capture.data.small_tensor_batches import Batches
from aten_dump.capture.data.wanted_data import WantedData
from tests.store.memory_sink import MemorySink


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


def test_a_tick_leaves_it_to_the_thread_that_is_adding_a_value(letters: Batches, sink: MemorySink) -> None:
    gather(letters, b"ab")
    ticked: list[bool] = []

    class Ticking:
        """Stands for the dtype, and is looked up while the value is added."""

        def __hash__(self) -> int:
            ticks = threading.Thread(target=letters.tick, daemon=True)
            ticks.start()
            ticks.join(20)
            ticked.append(not ticks.is_alive() and sink.blobs == {})
            return hash(torch.uint8)

        def __eq__(self, other: object) -> bool:
            return other is torch.uint8

    dtype: Any = Ticking()
    letters.add(dtype, stored=True, facts=False, value=2, data=b"cd")
    assert ticked and all(ticked)
    letters.tick()
    assert sink.blobs == {1: b"abcd"}


def test_a_value_that_comes_while_a_tick_sends_waits_for_the_next(letters: Batches, sink: MemorySink) -> None:
    sends, may_send = threading.Event(), threading.Event()
    store = sink.store_bytes

    def slow(*args: Any) -> int:
        sends.set()
        assert may_send.wait(20)
        return store(*args)

    sink.store_bytes = slow  # type: ignore[method-assign]
    gather(letters, b"ab")
    threads = [threading.Thread(target=letters.tick, daemon=True)]
    threads[0].start()
    assert sends.wait(20)
    threads.append(threading.Thread(target=gather, args=(letters, b"cd"), daemon=True))
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive(), "it is added to what is being sent"
    may_send.set()
    for thread in threads:
        thread.join(20)
    letters.flush()
    assert sink.blobs == {1: b"ab", 2: b"cd"}
