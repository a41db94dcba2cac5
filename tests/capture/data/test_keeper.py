"""What is kept of a value: once, by storage, and said of others that hold the same."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data.keeper import KEPT, Keeper
from aten_dump.capture.data.small_tensor_batches import SMALL_BYTES
from aten_dump.capture.data.stored_bytes import COMPACT, SAMPLE, STRIDED
from aten_dump.capture.memory.geometry import Elements
from aten_dump.capture.memory.storages import StorageState
from aten_dump.config import STATISTICS
from aten_dump.store import records as r
from tests.capture.bits import raw
from tests.store.memory_sink import MemorySink

LARGE = SMALL_BYTES  # elements of a float32 that are handled one tensor at a time


class Kept:
    """A keeper on a sink in memory, with values numbered from 1."""

    def __init__(self, **config: Any) -> None:
        self.sink = MemorySink()
        self.seconds = {"statistics": 0.0, "hash": 0.0, "copy": 0.0}
        self.seen: list[int] = []
        self.keeper = Keeper(DumpConfig(path="unused", **config), self.sink, self.seconds)
        self.states: dict[int, StorageState] = {}
        self.count = 0

    def keep(self, tensor: torch.Tensor, flags: int = 0, elements: Elements | None = None) -> None:
        storage = tensor.untyped_storage()
        state = self.states.setdefault(storage._cdata, StorageState(len(self.states) + 1, storage.nbytes(), 0))
        self.count += 1
        self.keeper.marks.append(flags)
        self.keeper.keep(tensor, state, self.count, elements)

    def of(self, kind: int) -> list[Any]:
        self.keeper.flush()
        return self.sink.of(kind)

    def data(self) -> dict[int, tuple[int, int, int]]:
        """Where the bytes of each value are: blob, offset, layout."""
        return {record.value: record[2:] for record in self.of(r.DATA)}


@pytest.mark.parametrize("is_known_where", [False, True])
def test_small_tensors_whose_elements_do_not_lie_in_a_row_go_with_the_batch(is_known_where: bool) -> None:
    base = torch.arange(-24.0, 24.0).view(6, 8)
    for x in (base[1:].t(), base[:, ::3], base[:1, :1].expand(4, 5), base.double()[2:].t(), base.bfloat16()[1:].t()):
        kept = Kept(data="full", statistics=("count", "min", "max", "negative"))
        first, nbytes = x.storage_offset() * x.element_size(), x.numel() * x.element_size()
        elements = x.dtype, first, nbytes, x.data_ptr(), (tuple(x.shape), x.stride())
        kept.keep(x, 0, elements if is_known_where else None)
        assert kept.sink.of(r.STATISTICS) == kept.sink.of(r.HASH) == [], "they wait"
        expected = [x.numel(), x.min().item(), x.max().item(), int((x < 0).sum())]
        assert [record[2] for record in kept.of(r.STATISTICS)] == [expected]
        assert [record[2] for record in kept.of(r.HASH)] == [xxhash.xxh3_64_digest(raw(x.contiguous()))]
        assert len(kept.data()) == 1


@pytest.mark.parametrize("size", [8, LARGE])
def test_each_level_keeps_what_it_says(size: int) -> None:
    kinds = {"structure": set(), "hash": {r.HASH}, "statistic": {r.STATISTICS}, "tensor": {r.BLOB, r.DATA}}
    kinds["full"] = kinds["hash"] | kinds["statistic"] | kinds["tensor"]
    for data, expected in kinds.items():
        kept = Kept(data=data)
        if data == "structure":
            assert kept.keeper.keeps_nothing
            continue
        kept.keep(torch.ones(size))
        assert kept.keeper.marks[1] == KEPT
        kept.keeper.flush()
        assert {record[0] for record in kept.sink.records} == expected, data


@pytest.mark.parametrize("size", [8, LARGE])
def test_another_view_of_all_elements_is_the_same(size: int) -> None:
    kept, x = Kept(data="full"), torch.randn(2, size // 2)
    kept.keep(x)
    kept.keep(x.view(-1))
    same = [(record.value, record.other) for record in kept.of(r.SAME)]
    assert set(same) == {(2, 1)}
    assert sum(record.facts for record in kept.of(r.SAME)) == r.SAME_STATISTICS | r.SAME_HASH
    assert len(kept.of(r.STATISTICS)) == len(kept.of(r.HASH)) == len(kept.of(r.BLOB)) == 1
    assert kept.data()[1] == kept.data()[2]


def test_the_hash_is_of_the_elements_in_their_order_whatever_is_stored() -> None:
    """Where the storage's bytes are those, their checksum is the hash: not of a transposed tensor."""
    for view in (torch.randn(LARGE // 64, 64), torch.randn(LARGE // 64, 64).t()):
        kept = Kept(data="full", hash="xxh3")
        kept.keep(view)
        assert [record.digest for record in kept.of(r.HASH)] == [xxhash.xxh3_64_digest(raw(view))]


def test_a_blob_has_the_shape_of_the_tensor_it_is() -> None:
    kept, x = Kept(data="tensor"), torch.randn(LARGE // 64, 64)
    kept.keep(x)
    kept.keep(torch.randn(LARGE // 64, 64).t())
    assert [(blob.dtype, list(blob.shape)) for blob in kept.of(r.BLOB)] == [
        ("F32", [LARGE // 64, 64]),
        ("F32", [LARGE]),
    ]


def test_views_of_a_small_tensor_are_found_behind_others_in_its_batch() -> None:
    kept, first, second = Kept(data="tensor"), torch.arange(6.0), torch.arange(8.0)
    for value in (first, second, second[2:], second[2::2]):
        kept.keep(value)
    assert kept.data() == {1: (1, 0, STRIDED), 2: (1, 24, STRIDED), 3: (1, 32, STRIDED), 4: (1, 32, STRIDED)}


def test_a_transposed_view_has_other_hash_and_the_same_statistics() -> None:
    kept, x = Kept(data="full"), torch.randn(LARGE // 64, 64)
    kept.keep(x)
    kept.keep(x.t())
    assert [(record.value, record.other, record.facts) for record in kept.of(r.SAME)] == [(2, 1, r.SAME_STATISTICS)]
    assert len({record.digest for record in kept.of(r.HASH)}) == 2


def test_bytes_are_kept_by_storage() -> None:
    kept, x = Kept(data="tensor"), torch.randn(4, LARGE)
    kept.keep(x[:2])  # half of the storage: all of it is stored
    kept.keep(x[3])
    assert kept.data() == {1: (1, 0, STRIDED), 2: (1, 3 * LARGE * 4, STRIDED)}
    assert kept.sink.blobs == {1: raw(x)}


def test_a_small_part_of_a_storage_is_kept_alone() -> None:
    kept, x = Kept(data="tensor"), torch.randn(8, LARGE)
    kept.keep(x[5])
    assert kept.data() == {1: (1, 0, STRIDED)}
    assert kept.sink.blobs == {1: raw(x[5])}


def test_what_is_mostly_gaps_is_kept_by_elements() -> None:
    kept, x = Kept(data="tensor"), torch.randn(LARGE, 8)
    kept.keep(x[:, 3])
    assert kept.data() == {1: (1, 0, COMPACT)}
    assert kept.sink.blobs == {1: raw(x[:, 3])}


def test_a_sample_is_the_first_elements() -> None:
    kept, x = Kept(data="tensor", sample=3), torch.randn(5, 4).t()
    kept.keep(x)
    kept.keep(torch.arange(2.0))
    assert kept.data() == {1: (1, 0, SAMPLE), 2: (2, 0, COMPACT)}
    assert kept.sink.blobs == {1: raw(x.reshape(-1)[:3]), 2: raw(torch.arange(2.0))}


@pytest.mark.parametrize("sample", [3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_a_sample_of_a_view_is_of_that_view(dtype: torch.dtype, sample: int) -> None:
    kept, x = Kept(data="tensor", sample=sample), torch.arange(60).remainder(7).to(dtype)
    views = [x[50:], x.view(6, 10)[3:], x.view(6, 10)[3:, 4:], x[59:].as_strided((1,), (5,))]
    for view in views:
        kept.keep(view)
    kept.of(r.DATA)
    assert kept.sink.blobs == {i: raw(view.reshape(-1)[:sample]) for i, view in enumerate(views, 1)}


@pytest.mark.parametrize("data", ["tensor", "full"])
@pytest.mark.parametrize("layout", ["in a row", "transposed", "with gaps"])
@pytest.mark.parametrize("size", [8, LARGE])
def test_memory_that_was_shrunk_under_a_tensor_is_not_read(size: int, layout: str, data: str) -> None:
    kept, whole = Kept(data=data), torch.randn(4, size)
    x = {"in a row": whole, "transposed": whole.t(), "with gaps": whole[:, ::2]}[layout]
    whole.untyped_storage().resize_(size * 2)
    kept.keep(x)
    kept.keeper.flush()
    assert kept.sink.records == [] and kept.sink.blobs == {}


def test_zeros_without_memory_are_zeros() -> None:
    kept = Kept(data="full")
    kept.keep(torch._efficientzerotensor((3,)))
    assert kept.sink.blobs == {1: bytes(12)}
    (numbers,) = [record.numbers for record in kept.of(r.STATISTICS)]
    assert numbers[:3] == [3, 0.0, 0.0]


@pytest.mark.parametrize("size", [4, LARGE])
def test_the_conjugate_and_the_plain_elements_share_bytes_not_facts(size: int) -> None:
    kept, x = Kept(data="full"), torch.randn(size, dtype=torch.complex64)
    kept.keep(x)
    kept.keep(x.conj(), flags=r.CONJUGATE)
    assert kept.of(r.SAME) == []
    assert len({record.digest for record in kept.of(r.HASH)}) == 2
    assert kept.data()[1][:2] == kept.data()[2][:2]


def test_the_observer_sees_every_tensor_even_where_nothing_is_kept() -> None:
    seen: list[int] = []
    config = DumpConfig(path="unused", data="structure")
    keeper = Keeper(config, MemorySink(), {}, lambda tensor, value, storage: seen.append(value))
    assert not keeper.keeps_nothing
    for number, tensor in enumerate((torch.ones(3), torch.ones(LARGE), torch.eye(3, dtype=torch.complex64).conj()), 1):
        keeper.marks.append(0)
        keeper.keep(tensor, StorageState(number, tensor.untyped_storage().nbytes(), 0), number)
        assert keeper.marks[number] == KEPT
    assert seen == [1, 2, 3]


def test_what_torch_cannot_read_is_told_of_and_not_tried_again() -> None:
    kept, x = Kept(data="full"), torch.randn(LARGE)

    def broken(tensor: torch.Tensor, value: int, storage: StorageState) -> None:
        raise RuntimeError("no such kernel\nand a trace")

    kept.keeper = Keeper(DumpConfig(path="unused", data="full"), kept.sink, kept.seconds, broken)
    kept.keeper.marks.append(0)
    kept.keeper.keep(x, StorageState(1, x.untyped_storage().nbytes(), 0), 1)
    (note,) = kept.of(r.NOTE)
    assert (note.code, note.message.rpartition(": ")[2]) == ("unreadable", "no such kernel")
    assert "float32" in note.message and str(LARGE) in note.message


def test_bytes_are_those_at_the_moment_of_keeping() -> None:
    kept, x = Kept(data="tensor"), torch.arange(16.0)
    kept.keep(x)
    ctypes.memset(x.data_ptr(), 255, 64)
    kept.keeper.flush()
    assert kept.sink.blobs == {1: raw(torch.arange(16.0))}


LAYOUTS = {
    "in a row": lambda x: x,
    "a part": lambda x: x[3:-5],
    "transposed": lambda x: x.t(),
    "a part, transposed": lambda x: x[3:-5].t(),
    "channels last": lambda x: x.view(2, 4, 64, -1).to(memory_format=torch.channels_last),
    "with gaps": lambda x: x[:, ::3],
    "expanded": lambda x: x[:1].expand(9, x.shape[1]),
    "negative bit": lambda x: torch.complex(x, x).conj().imag,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_facts_are_of_the_elements_however_they_lie(layout: str, dtype: torch.dtype) -> None:
    if layout == "negative bit" and dtype != torch.float32:
        pytest.skip("only real parts of complex numbers have that bit: float32 runs")
    tensor = LAYOUTS[layout]((torch.randn(256, 260) * 20).to(dtype))
    kept, plain = Kept(data="full"), tensor.resolve_neg().contiguous().clone()
    kept.keep(tensor, r.NEGATIVE if tensor.is_neg() else 0)
    (hashed,), (measured,) = kept.of(r.HASH), kept.of(r.STATISTICS)
    assert hashed.digest == xxhash.xxh3_64_digest(raw(plain))
    wide = plain.double()
    for name, number in zip(STATISTICS, measured.numbers, strict=True):
        expected = {
            "count": wide.numel(), "min": wide.min(), "max": wide.max(), "mean": wide.mean(), "l2norm": wide.norm(),
            "std": wide.std(), "zero": (wide == 0).sum(), "negative": (wide < 0).sum(), "positive": (wide > 0).sum(),
        }.get(name, 0)  # fmt: skip
        assert number == pytest.approx(float(expected), rel=1e-5, abs=1e-4), name


@pytest.mark.parametrize("data", ["full", "statistic", "hash"])
def test_the_empty_tensor_that_torch_makes_of_a_storage_is_read(tmp_path: Path, data: Any) -> None:
    torch.save(torch.nn.Linear(2, 3).state_dict(), tmp_path / "weights.pt")
    with DumpMode(DumpConfig(tmp_path / "dump", data=data)) as dump:
        dump.mark("no dispatch key is set on what is read first of each tensor")
        torch.load(tmp_path / "weights.pt")
        empty = torch.randn(0, 3).mT.sum()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert [note.code for note in rank.notes] == []
    if data == "full":
        found = rank["Torch.randn.0.forward"].outputs.tensor()
        assert (found.shape, found.stride(), empty.item()) == ((0, 3), (3, 1), 0.0)
