"""Value and Storage records: numbers, flags, and what a tensor needs beside its geometry."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.capture.memory.storages import StorageState
from aten_dump.capture.memory.written_bytes import WrittenRanges
from aten_dump.capture.naming.interned_tables import Interner
from aten_dump.capture.values.value_records import ValueRecords
from aten_dump.store import records as r
from tests.store.memory_sink import MemorySink


class Records:
    """The records of a step on a sink in memory."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.marks = [0]
        self.records = ValueRecords(self.sink.emit, Interner(self.sink.emit), self.marks)

    def of(self, tensor: torch.Tensor, state: StorageState | None = None) -> r.Value:
        """The record of a tensor in memory."""
        state = state or StorageState(7, tensor.untyped_storage().nbytes(), 0)
        geometry = (
            tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype,
            tensor.is_complex() and tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        tree = self.records.in_memory(tensor, state, geometry)
        value: r.Value = self.sink.of(r.VALUE)[-1]
        assert (tree, value.storage) == ((r.TREE_VALUE, value.id), state.id)
        assert self.marks[value.id] == value.flags and len(self.marks) == self.records.count + 1
        return value

    def text(self, number: int) -> str:
        return {text.id: text.text for text in self.sink.of(r.TEXT)}.get(number, "")


@pytest.fixture
def records() -> Records:
    return Records()


def test_a_storage_names_its_device(records: Records) -> None:
    for number, device in ((1, "cpu"), (2, "meta"), (3, "cpu")):
        records.records.storage(StorageState(number, 8 * number, 0), torch.device(device))
    found = [(s.id, s.nbytes, records.text(s.device)) for s in records.sink.of(r.STORAGE)]
    assert found == [(1, 8, "cpu"), (2, 16, "meta"), (3, 24, "cpu")]
    assert len(records.sink.of(r.TEXT)) == 2


def test_a_storage_in_the_memory_of_another_is_told_of_again(records: Records) -> None:
    states = [StorageState(number, 8, 0) for number in (1, 2)]
    for state in states:
        records.records.storage(state, torch.device("cpu"))
    records.records.shared(states[1], torch.device("cpu"), 1, 16)
    assert records.sink.of(r.STORAGE)[2] == records.sink.of(r.STORAGE)[1]._replace(memory=1, offset=16)


def test_a_view_is_its_place_in_the_storage_at_its_version(records: Records) -> None:
    x = torch.zeros(4, 6, dtype=torch.bfloat16)
    state = StorageState(3, 48, 0)
    state.version = 5
    value = records.of(x[1:, ::2], state)
    assert (value.version, value.offset, value.shape, value.stride) == (5, 6, (3, 3), (6, 2))
    assert records.text(value.dtype) == "bfloat16" and (value.flags, value.extra) == (0, None)


def test_values_are_numbered_in_one_row_with_or_without_storage(records: Records) -> None:
    records.of(torch.ones(1))
    sparse = torch.eye(2).to_sparse()
    assert records.records.without_storage(sparse, 0, {"layout": "coo"}, strided=False) == 2
    assert records.records.without_shape({"why": "functorch"}) == 3
    records.of(torch.ones(1, dtype=torch.int64))
    assert [value.id for value in records.sink.of(r.VALUE)] == [1, 2, 3, 4] and records.records.count == 4


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (lambda: torch.ones(2), 0),
        (lambda: torch.ones(2, requires_grad=True), r.REQUIRES_GRAD),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), r.CONJUGATE),
        (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, r.NEGATIVE),
        (lambda: torch.ones(2, dtype=torch.complex64, requires_grad=True).conj(), r.CONJUGATE | r.REQUIRES_GRAD),
    ],
    ids=["plain", "grad", "conjugate", "negative", "both"],
)
def test_flags_of_a_tensor(records: Records, make: Any, flags: int) -> None:
    assert records.of(make()).flags == flags


def test_memory_that_nothing_has_written_is_undefined_where_the_view_lies(records: Records) -> None:
    x = torch.zeros(8)
    state = StorageState(1, 32, 0)
    state.written = WrittenRanges(32)
    state.written.define(0, 16)
    assert records.of(x[:4], state).flags == 0
    assert records.of(x[3:5], state).flags == r.UNDEFINED
    assert records.of(x, state).flags == r.UNDEFINED


def test_memory_that_was_given_back_is_undefined_and_an_empty_tensor_is_not(records: Records) -> None:
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    assert records.of(x).flags == r.UNDEFINED
    assert records.of(torch.empty(0)).flags == 0


def test_a_tensor_without_memory_is_opaque(records: Records) -> None:
    x = torch.ones(2, device="meta")
    assert records.of(x, StorageState(1, 8, 0)).flags == r.OPAQUE


def test_quantized_by_tensor_and_by_channel(records: Records) -> None:
    x = torch.randn(2, 3)
    whole = records.of(torch.quantize_per_tensor(x, 0.5, 3, torch.quint8)).extra
    assert whole == {"quantized": {"scheme": "per_tensor_affine", "scale": 0.5, "zero_point": 3}}
    scales, points = torch.tensor([0.5, 0.25]), torch.tensor([1, 2])
    rows = records.of(torch.quantize_per_channel(x, scales, points, 0, torch.qint8)).extra
    assert rows == {
        "quantized": {
            "scheme": "per_channel_affine", "scales": [0.5, 0.25], "zero_points": [1, 2], "points_dtype": "int64",
            "axis": 0,
        }
    }  # fmt: skip


def test_a_value_without_storage_keeps_its_shape_and_its_stride_if_it_has_one(records: Records) -> None:
    x = torch.zeros(3, 2, requires_grad=True)
    records.records.without_storage(x.detach(), r.OPAQUE, {"a": 1})
    records.records.without_storage(x, 0, {}, strided=False)
    first, second = records.sink.of(r.VALUE)
    assert (first.storage, first.shape, first.stride, first.flags, first.extra) == (
        0,
        [3, 2],
        [2, 1],
        r.OPAQUE,
        {"a": 1},
    )
    assert (second.shape, second.stride, second.flags) == ([3, 2], [], r.REQUIRES_GRAD)
    assert records.text(first.dtype) == "float32"


def test_a_value_without_a_shape_says_nothing_but_that(records: Records) -> None:
    records.records.without_shape({"why": "functorch"})
    (value,) = records.sink.of(r.VALUE)
    assert (value.storage, value.dtype, value.shape, value.flags, value.extra) == (
        0,
        0,
        [],
        r.OPAQUE,
        {"why": "functorch"},
    )
