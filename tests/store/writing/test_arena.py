"""Pieces of reused memory: aligned, within the budget, waited for."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from aten_dump.store.shards import ALIGNMENT
from aten_dump.store.writing.arena import CHUNK_BYTES, Arena, fresh_memory

QUEUE = 4 * (1024 + ALIGNMENT)  # four chunks of 1 KiB


def arena(queue_bytes: int = QUEUE, **options: object) -> Arena:
    return Arena(queue_bytes, lambda: nullcontext(lambda: None), **options)  # type: ignore[arg-type]


def test_pieces_are_aligned_and_side_by_side() -> None:
    found = arena()
    first, second = found.reserve(10), found.reserve(100)
    assert first[0] is second[0] and (first[1:], second[1:]) == ((0, 10), (ALIGNMENT, 100))
    assert first[0].address % ALIGNMENT == 0
    first[0].view[0:2] = b"ab"
    assert bytes(first[0].view[0:2]) == b"ab" and len(first[0].view) == first[0].size


def test_chunks_are_a_quarter_of_the_queue_and_no_longer_than_need_be() -> None:
    assert arena().chunk_bytes == QUEUE // 4 // ALIGNMENT * ALIGNMENT
    assert arena(1 << 40).chunk_bytes == CHUNK_BYTES


def test_memory_is_made_when_needed_and_never_more_than_the_queue() -> None:
    found = arena()
    assert found.allocated_bytes == 0
    size = found.chunk_bytes
    taken = [found.reserve(size)[0]]
    assert found.allocated_bytes == size + ALIGNMENT
    while (len(taken) + 1) * (size + ALIGNMENT) <= QUEUE:
        taken.append(found.reserve(size)[0])
    assert found.allocated_bytes <= QUEUE and len(set(map(id, taken))) == len(taken) >= 3


def test_a_blob_is_cut_at_the_end_of_a_chunk_but_not_for_a_small_rest() -> None:
    found = arena()
    size = found.chunk_bytes
    first = found.reserve(size // 2 // ALIGNMENT * ALIGNMENT)
    cut = found.reserve(size)
    assert cut[0] is first[0] and cut[2] == size - cut[1] < size
    other = arena()
    most = other.reserve(size - ALIGNMENT)
    whole = other.reserve(size)
    assert whole[0] is not most[0] and whole[1:] == (0, size), "the rest of the chunk was too small"
    assert other.reserve(0)[2] == 0


def test_a_chunk_is_filled_again_when_all_its_pieces_are_back() -> None:
    found = arena()
    chunk, _, _ = found.reserve(100)
    found.reserve(100)
    found.release([chunk])
    assert found.reserve(10)[1] == 2 * 128, "one piece is still out"
    found.release([chunk, chunk])
    assert found.reserve(10)[1] == 0
    assert found.allocated_bytes == found.chunk_bytes + ALIGNMENT


def test_a_retired_chunk_comes_back() -> None:
    found = arena()
    size = found.chunk_bytes
    first = found.reserve(size)[0]
    second = found.reserve(size)[0]
    found.release([first])
    third = found.reserve(size)[0]
    assert third is first is not second


def test_it_waits_for_room_and_counts_the_time() -> None:
    asked = threading.Event()
    found = Arena(QUEUE, lambda: nullcontext(asked.set))
    size = found.chunk_bytes
    taken = [found.reserve(size)[0] for _ in range(QUEUE // (size + ALIGNMENT))]
    assert found.waited_seconds == 0

    def give_back() -> None:
        asked.wait(10)
        found.release([taken[1]])

    thread = threading.Thread(target=give_back)
    thread.start()
    assert found.reserve(size)[0] is taken[1]
    thread.join()
    assert found.waited_seconds > 0


def test_there_may_be_no_use_in_waiting() -> None:
    def refuse() -> None:
        raise RuntimeError("the writer is gone")

    found = Arena(QUEUE, lambda: nullcontext(refuse))
    for _ in range(QUEUE // (found.chunk_bytes + ALIGNMENT)):
        found.reserve(found.chunk_bytes)
    with pytest.raises(RuntimeError, match="the writer is gone"):
        found.reserve(1)
    found.wake_waiting()


def test_memory_of_another_kind() -> None:
    sizes: list[int] = []

    def allocate(nbytes: int):  # type: ignore[no-untyped-def]
        sizes.append(nbytes)
        return fresh_memory(nbytes)

    found = arena(allocate=allocate)
    found.reserve(1)
    assert sizes == [found.chunk_bytes + ALIGNMENT]
