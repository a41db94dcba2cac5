"""Storages of a step: one number each, a new version with each write, and no memory held."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from aten_dump.capture.memory.sparse_parts import sparse_parts
from aten_dump.capture.memory.storage_table import SharedMemory, StorageTable
from aten_dump.capture.memory.storages import StorageState
from aten_dump.store.records import TREE_VALUE
from tests.devices import here


class Announced:
    """A table, and what it has announced."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.table = StorageTable(
            lambda state, device: self.found.append((state.id, device.type)),
            lambda state, device, whole, offset: None,
        )

    def state(self, tensor: torch.Tensor) -> StorageState:
        state = self.table.state_of(tensor)
        assert state is not None
        return state


@pytest.fixture
def announced() -> Announced:
    return Announced()


def test_views_share_a_storage_that_is_announced_once(announced: Announced) -> None:
    x = torch.zeros(4, 4)
    assert not announced.table.knows(x)
    assert announced.state(x) is announced.state(x[1:].t())
    assert announced.table.knows(x[2])
    announced.state(torch.zeros(2, device="meta"))
    assert announced.found == [(1, here().type), (2, "meta")]
    announced.table.clear()


def test_a_write_makes_a_new_version_and_forgets_what_was_known(announced: Announced) -> None:
    x = torch.zeros(4)
    state = announced.state(x)
    state.add_value(("one",), (TREE_VALUE, 1))
    state.whole_facts().hash[x.dtype] = 1
    before = state.written_at
    announced.table.written(x[1:2])
    assert (state.version, state.value, state.whole_facts().hash) == (1, None, {})
    assert state.written_at > before
    announced.table.clear()


def test_fresh_memory_is_undefined_until_all_of_it_is_written(announced: Announced) -> None:
    x = torch.empty(4)
    announced.table.undefined(x)
    state = announced.state(x)
    assert state.written is not None
    announced.table.written(x[:3])
    assert state.written is not None
    announced.table.written(x[3:])
    assert state.written is None
    announced.table.undefined(x)
    assert state.written is None, "an op that returns memory which was seen before has not allocated it"
    announced.table.clear()


def test_a_copy_of_undefined_memory_is_undefined(announced: Announced) -> None:
    source, target, clone = torch.empty(4), torch.zeros(4), torch.zeros(4)
    announced.table.undefined(source)
    announced.table.written(source[:2])
    announced.table.copied(target, source)
    written = announced.state(target).written
    assert written is not None
    assert [written.covers(target[i : i + 1], (i,)) for i in range(4)] == [True, True, False, False]
    announced.table.cloned(clone, source)
    assert announced.state(clone).written is not None
    announced.table.copied(target, torch.zeros(4))
    assert announced.state(target).written is None
    announced.table.clear()


def test_memory_that_others_write_is_hidden_until_it_is_written(announced: Announced) -> None:
    x = torch.zeros(4)
    state = announced.state(x)
    announced.table.unwritten(x[:2])
    assert state.written is not None and state.written.in_flight
    assert not state.written.covers(x[1:3], (1,))
    assert state.written.covers(x[2:], (2,))
    announced.table.written(x[:2])
    assert state.written is None
    announced.table.clear()


def test_memory_after_a_mark_is_trusted_no_more(announced: Announced) -> None:
    old, new = torch.zeros(2), torch.zeros(2)
    first = announced.state(old)
    mark = announced.table.seen()
    second = announced.state(new)
    announced.table.invalidate_since(mark)
    assert (first.version, second.version) == (0, 1)
    announced.table.invalidate()
    assert (first.version, second.version) == (1, 2)
    announced.table.clear()


def test_what_a_storage_grows_by_is_undefined(announced: Announced) -> None:
    x = torch.zeros(4)
    state = announced.state(x)
    x.untyped_storage().resize_(32)
    announced.table.resized(x.untyped_storage(), 16)
    assert (state.nbytes, state.version) == (32, 1)
    assert state.written is not None and state.written.covers(x, (0,))
    announced.table.clear()


def test_tensors_without_storage_are_left_alone(announced: Announced) -> None:
    sparse = torch.eye(3).to_sparse()
    announced.table.undefined(sparse)
    announced.table.unwritten(sparse)
    announced.table.cloned(sparse, sparse)
    assert announced.table.state_of(sparse) is None
    assert not announced.table.knows(sparse)
    assert announced.found == []


def test_a_sparse_tensor_is_written_where_its_parts_are(announced: Announced) -> None:
    sparse = torch.eye(3).to_sparse_csr()
    parts = sparse_parts(sparse).values()
    announced.table.written(sparse)
    announced.table.written(sparse)
    assert [announced.state(part).version for part in parts] == [2, 2, 2] and len(announced.found) == 3


def test_memory_is_freed_and_its_address_not_taken_for_it(announced: Announced) -> None:
    table = announced.table
    x = torch.zeros(1 << 12)
    alive = weakref.ref(x)
    table.state_of(x)
    del x
    gc.collect()
    assert alive() is None
    ids = [announced.state(torch.zeros(1 << 12)).id for _ in range(5000)]
    assert ids == list(range(2, 5002)), "a freed storage's address stands for another one"
    assert len(table.states) < 2500, "states of freed storages stay"
    table.clear()
    assert table.states == {}


def test_what_is_as_it_was_after_unseen_code_is_as_undefined_as_it_was(announced: Announced) -> None:
    untouched, filled, begun, fresh = torch.empty(4), torch.empty(4), torch.empty(4), torch.empty(4)
    for tensor in (untouched, filled, begun):
        announced.table.undefined(tensor)
    begun[:2] = 1.0
    announced.table.written(begun[:2])
    before = announced.table.unwritten_contents()
    announced.table.undefined(fresh)
    filled.copy_(filled.nan_to_num() + 1)
    announced.table.invalidate(before)
    states = [announced.state(tensor) for tensor in (untouched, filled, begun, fresh)]
    assert [state.written is None for state in states] == [False, True, False, True]
    assert states[2].written is not None and states[2].written.covers(begun[:2], (0,)), "what was written stays so"
    assert all(state.version for state in states), "their values are seen anew"
    announced.table.clear()


class Placed:
    """Storages at addresses of our own, and what was told of them."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []
        self.memory = SharedMemory(lambda state, _, whole, offset: self.told.append((state.id, whole, offset)))
        self.kept: dict[int, torch.UntypedStorage] = {}

    def add(self, number: int, address: int, nbytes: int) -> StorageState:
        storage = self.kept[number] = torch.UntypedStorage(nbytes)
        state = StorageState(number, nbytes, storage._weak_ref())
        self.memory.add(state, address, here())
        return state


def test_storages_in_one_memory_count_their_writes_together() -> None:
    placed = Placed()
    whole, beside = placed.add(1, 1000, 64), placed.add(2, 1064, 8)
    parts = [placed.add(3, 1000, 16), placed.add(4, 1016, 48)]
    assert placed.told == [(3, 1, 0), (4, 1, 16)]
    for state in (whole, parts[1], parts[0]):
        state.bump()
    assert [state.version for state in (whole, *parts, beside)] == [3, 3, 3, 0]


def test_a_storage_around_others_is_what_they_lie_in() -> None:
    placed = Placed()
    first, second = placed.add(1, 2000, 8), placed.add(2, 2040, 8)
    first.bump()
    whole = placed.add(3, 2000, 64)
    assert sorted(placed.told) == [(1, 3, 0), (2, 3, 40)]
    assert [state.version for state in (first, second, whole)] == [1, 1, 1], "nothing was written"
    second.add_value((0, (8,), (1,), torch.uint8, False, False), (TREE_VALUE, 1))
    whole.bump()
    assert second.version == 2 and second.value is None


def test_freed_memory_is_given_out_again_and_a_storage_may_move() -> None:
    placed = Placed()
    placed.add(1, 3000, 64)
    del placed.kept[1]
    whole, part = placed.add(2, 3000, 32), placed.add(3, 5000, 8)
    assert placed.told == []
    placed.memory.add(part, 3008, here())
    assert placed.told == [(3, 2, 8)]
    placed.memory.add(part, 5000, here())
    part.bump()
    assert (whole.version, part.version) == (0, 1)
    placed.add(4, 3008, 8)
    assert placed.told[1:] == [(4, 2, 8)], "the one that moved away is not there"


def test_a_storage_that_gave_its_memory_back_does_not_lie_with_who_got_it() -> None:
    placed = Placed()
    first = placed.add(1, 1000, 64)
    first.nbytes = 0
    placed.memory.add(first, 0, here())
    placed.add(2, 990, 64)
    first.nbytes = 64
    placed.memory.add(first, 5000, here())
    placed.add(3, 1060, 64)
    assert placed.told == []
    placed.add(4, 5000, 8)
    assert placed.told == [(4, 1, 0)]
