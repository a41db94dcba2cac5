"""`HeldBytes`: what is held has the bytes that were copied, however blobs of all sizes come and go; the oldest go."""

from __future__ import annotations

import random

import pytest

from aten_dump.capture.trigger.held_bytes import HeldBytes
from tests.store.memory_sink import MemorySink

from .recording import stored


def read(held: HeldBytes, number: int) -> bytes | None:
    sink = MemorySink()
    found = held.write(number, sink)
    return bytes(sink.blobs[found]) if found else None


@pytest.mark.parametrize("seed", range(3))
def test_blobs_of_all_sizes_keep_their_bytes_and_the_budget(seed: int) -> None:
    draw = random.Random(seed)
    held, given, order = HeldBytes(1 << 20), {}, []
    sizes = [0, 1, 63, 5000, 65_536, 65_537, 100_000, 180_000, 400_000]
    for _ in range(300):
        data = draw.randbytes(draw.choice(sizes))
        number = stored(held, data)
        given[number] = data
        order.append(number)
        assert held.nbytes <= 1 << 20
        used = draw.choice(order)
        held.use(used)
        if read(held, used) is not None:
            order.remove(used)
            order.append(used)
    alive = [number for number in order if read(held, number) is not None]
    assert all(read(held, number) == given[number] for number in alive)
    assert order[-1] in alive and len(alive) > 2
    assert sum(len(given[number]) for number in alive) == held.nbytes > 1 << 18
    held.clear()
    assert held.nbytes == 0 and read(held, alive[0]) is None


def test_those_that_were_used_last_stay() -> None:
    held = HeldBytes(400_000)
    first, second = stored(held, b"a" * 150_000), stored(held, b"b" * 150_000)
    held.use(first)
    third = stored(held, b"c" * 150_000)
    assert [read(held, one) is not None for one in (first, second, third)] == [True, False, True]


def test_room_in_pieces_is_made_whole() -> None:
    held = HeldBytes(400_000)
    numbers = [stored(held, bytes([at]) * 100_000) for at in range(4)]
    held.use(numbers[1])
    held.use(numbers[3])  # the oldest two do not lie beside each other
    last = stored(held, b"z" * 200_000)
    assert read(held, last) == b"z" * 200_000 and held.nbytes <= 400_000
    assert read(held, numbers[3]) == bytes([3]) * 100_000, "it was used last"


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    held = HeldBytes(70_000)
    kept = stored(held, b"a" * 70_000)
    assert read(held, stored(held, b"b" * 70_001)) is None and read(held, kept) is not None


def test_a_budget_larger_than_the_machine_is_no_error() -> None:
    held = HeldBytes(1 << 60)
    assert read(held, stored(held, b"a" * 100_000)) == b"a" * 100_000


def test_a_copy_that_fails_leaves_its_room_to_others() -> None:
    def fail(offset: int, address: int, nbytes: int) -> None:
        raise RuntimeError("the device is gone")

    held = HeldBytes(200_000)
    kept = stored(held, b"a" * 90_000)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="gone"):
            held.keep("U8", [100_000], 100_000, fail)
    other = stored(held, b"b" * 100_000)
    assert held.nbytes == 190_000 and read(held, kept) == b"a" * 90_000 and read(held, other) == b"b" * 100_000
