"""Writes that no op tells of, and what `dedup="content"` makes of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.memory.storages import StorageState
from aten_dump.capture.memory.written_bytes import WrittenRanges
from aten_dump.capture.values.unseen_writes import UnseenWrites
from tests.capture.bits import assert_same, calls
from tests.models import build, outcome_of, run_steps, train

Record = Callable[..., Any]


def exps(rank: Any) -> list[Any]:
    return [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::exp")]


def unseen(rank: Any) -> list[int]:
    return [note.count for note in rank.notes if note.code == "unseen_writes"]


def numpy_write(x: torch.Tensor) -> None:
    x.numpy()[...] = 7


def raw_write(x: torch.Tensor) -> None:
    if x.device.type == "cpu":
        ctypes.memset(x.data_ptr(), 0, x.nbytes)
    else:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            x.zero_()


def write_through_another_storage(x: torch.Tensor) -> None:
    torch.from_dlpack(x).mul_(3)


@pytest.mark.parametrize("data", ["tensor", "full", "hash"])
@pytest.mark.parametrize("write", [numpy_write, raw_write, write_through_another_storage])
def test_content_finds_a_write_that_dispatch_does_not_see(record: Record, write: Any, data: str) -> None:
    x = torch.arange(4.0) + 1
    kept: list[torch.Tensor] = []

    def body() -> None:
        x.exp()
        kept.append(x.clone())
        write(x)
        x.exp()
        x.exp()

    rank = record(body, data=data, dedup="content")
    before, after, again = exps(rank)
    assert before.id != after.id == again.id
    assert (before.version, after.version) == (0, 1)
    assert after.producer is None
    if data != "hash":
        assert_same(kept[0], before.tensor())
        assert_same(x, after.tensor())
    if data != "tensor":
        assert before.hash != after.hash
    assert unseen(rank) == [1]


def test_version_does_not_look(record: Record) -> None:
    """The default trusts the ops: what docs/limitations.md says."""
    x = torch.arange(4.0)
    rank = record(lambda: (x.exp(), numpy_write(x), x.exp()), data="tensor")
    before, after = exps(rank)
    assert before.id == after.id
    assert after.tensor().tolist() == [0, 1, 2, 3]
    assert unseen(rank) == []


def test_a_write_through_numpy_is_found_through_another_view(record: Record) -> None:
    """What is known of the storage's bytes is not taken for the bytes of a view that was never seen."""
    x = torch.arange(12.0).reshape(3, 4)

    def body() -> None:
        x.exp()
        x.numpy()[1, 2] = 100
        x[1].exp()
        x.t().exp()

    whole, row, turned = exps(record(body, data="full", dedup="content"))
    assert whole.tensor()[1, 2] == 6
    assert row.tensor().tolist() == [4, 5, 100, 7]
    assert_same(x.t(), turned.tensor(), stride=True)
    assert row.stats.max == turned.stats.max == 100 and whole.stats.max == 11


def test_a_slice_of_a_huge_buffer_is_watched_alone(record: Record, tmp_path: Path) -> None:
    huge = torch.zeros(1 << 22)
    part, array = huge[100:110], huge.numpy()

    def body() -> None:
        part.exp()
        array[200] = 1  # elsewhere
        part.exp()
        array[105] = 1
        part.exp()

    first, second, third = exps(record(body, data="tensor", dedup="content"))
    assert first.id == second.id != third.id
    assert third.tensor().tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert sum(file.stat().st_size for file in tmp_path.rglob("shard-*")) < 200_000


def test_memory_from_empty_is_defined_by_an_unseen_write(record: Record) -> None:
    def body() -> None:
        x = torch.empty(6)
        x.numpy()[...] = 3
        x.exp()

    (value,) = exps(record(body, data="full", dedup="content"))
    assert not value.undefined and value.tensor().tolist() == [3] * 6
    (value,) = exps(record(body, data="full"))
    assert value.undefined  # nothing that the recorder saw wrote it


def test_a_module_that_writes_through_numpy(record: Record) -> None:
    class Clip(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.numpy()[x.numpy() < 0] = 0
            return x

    x = torch.tensor([-1.0, 2.0])
    rank = record(lambda: Clip()(x), level="module", data="tensor", dedup="content")
    call = calls(rank, kind="module")[0]
    assert call.inputs[0][0].tensor().tolist() == [-1, 2]
    assert call.outputs.tensor().tolist() == [0, 2]
    assert call.mutated_values["0"].tensor().tolist() == [0, 2]


def test_every_kind_of_tensor_can_be_hashed(record: Record) -> None:
    kinds = [
        torch.empty(0),
        torch.tensor(1.0).expand(5, 5),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.arange(6.0)[::2],
        torch.empty(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.ones(2, dtype=torch.bfloat16),
    ]
    rank = record(lambda: [t.clone() for t in kinds], data="tensor", dedup="content")
    assert unseen(rank) == []
    for kind, call in zip(kinds, calls(rank, kind="aten", op="aten::clone"), strict=True):
        if kind.layout is torch.strided and not kind.is_meta:
            assert_same(kind, call.inputs[0][0].tensor())


@pytest.mark.parametrize("kind", ["subclass", "jagged", "nested"])
def test_calls_on_tensors_without_an_extent_are_recorded(record: Record, kind: str) -> None:
    """A Python-level call asks whether its arguments were written, of all of them."""
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    if kind == "subclass":
        given: torch.Tensor = TwoTensor(parts[0], parts[0].clone())
    else:
        given = torch.nested.nested_tensor(parts, layout=torch.jagged if kind == "jagged" else torch.strided)
    rank = record(lambda: torch.sin(given).cos(), data="full", dedup="content")
    assert unseen(rank) == []
    assert [call.op for call in calls(rank, kind="api")] == ["torch.sin", "torch.Tensor.cos"]


@pytest.mark.parametrize("model", ["gpt2", "resnet"])
def test_content_and_version_record_the_same_of_an_honest_program(tmp_path: Path, model: str) -> None:
    """No op of a training step writes unseen; and hashing changes no bit of the program."""
    expected = train(build(model, "adamw_foreach"), 2).tensors()
    recorded = {}
    for dedup in ("version", "content"):
        program = build(model, "adamw_foreach")
        config = DumpConfig(path=str(tmp_path / dedup), data="hash", dedup=dedup, level="aten")
        with DumpMode(config, model=program.model) as dump:
            losses = run_steps(program, 2, dump.step)
        found = outcome_of(program, losses).tensors()
        for name, tensor in expected.items():
            assert_same(tensor, found[name], name)
        rank = open_dump(str(tmp_path / dedup)).step(1).rank(0)
        recorded[dedup] = [(v.storage, v.version, v.shape, v.hash) for v in rank.values]
        assert unseen(rank) == []
    assert recorded["version"] == recorded["content"]


class Looks:
    """Looks at views of one storage."""

    def __init__(self, tensor: torch.Tensor, *, sampled: bool = False) -> None:
        self.seconds = {"hash": 0.0}
        self.unseen = UnseenWrites(self.seconds, sampled=sampled)
        self.state = StorageState(1, tensor.untyped_storage().nbytes(), 0)

    def __call__(self, tensor: torch.Tensor) -> int:
        """The storage's version after a look."""
        self.unseen.check(tensor, self.state)
        return self.state.version


def test_a_write_is_found_once_by_whichever_view_looks_first() -> None:
    x = torch.arange(64.0)
    look = Looks(x)
    assert [look(x), look(x[:40]), look(x[3:5])] == [0, 0, 0]
    raw_write(x)
    assert [look(x[3:5]), look(x), look(x[3:5])] == [1, 1, 1]
    assert look.unseen.count == 1 and look.seconds["hash"] > 0


@pytest.mark.parametrize("part", [1.0, 0.6, 0.4])
def test_a_sample_finds_what_writes_a_thirtieth_in_a_row(part: float) -> None:
    """Wherever it is, and whichever part of its storage the tensor is: docs/limitations.md says so."""
    storage = torch.zeros(6000)
    x = storage[: int(6000 * part)]
    look, size = Looks(x, sampled=True), x.numel() // 30
    look(x)
    for number, start in enumerate(range(0, x.numel() - size, 37), 1):
        x.numpy()[start : start + size] += 1
        assert look(x) == number


def test_a_write_beside_what_was_looked_at_is_not_looked_for() -> None:
    """A slice of a huge buffer does not read the buffer."""
    x = torch.arange(64.0)
    look = Looks(x)
    look(x[:8])
    raw_write(x[32:40])
    assert look(x[:8]) == 0 and look(x[32:40]) == 0
    raw_write(x[7:8])
    assert look(x[8:16]) == 0, "it touches no byte that was looked at"
    assert look(x[6:9]) == 1


def test_half_of_a_storage_stands_for_all_of_it() -> None:
    x = torch.arange(64.0)
    for part, version in ((x[:32], 1), (x[:31], 0)):
        look = Looks(x)
        look(part)
        x[60] += 1
        assert look(part) == version


def test_a_version_that_an_op_began_starts_afresh() -> None:
    x = torch.arange(16.0)
    look = Looks(x)
    look(x)
    raw_write(x)
    look.state.bump()
    assert look(x) == 1 and look.unseen.count == 0
    x.numpy()[...] = 3
    assert look(x) == 2 and look.unseen.count == 1


def test_what_was_written_unseen_is_defined() -> None:
    x = torch.empty(16)
    look = Looks(x)
    look.state.written = WrittenRanges(64)
    look(x)
    assert look.state.written is not None
    x.numpy()[...] = x.numpy() + 1 if bool(torch.isfinite(x).all()) else 5
    look(x)
    assert look.state.written is None


def test_what_is_in_flight_is_not_looked_at() -> None:
    x = torch.arange(16.0)
    look = Looks(x)
    look.state.hide(0, 64)
    look(x)
    raw_write(x)
    assert look(x) == 1 and look.unseen.count == 0 and look.seconds["hash"] == 0


@pytest.mark.parametrize(
    "make", [lambda: torch.empty(0), lambda: torch.empty(3, device="meta"), lambda: torch._efficientzerotensor((3,))]
)
def test_a_tensor_without_bytes_is_not_looked_at(make: Callable[[], torch.Tensor]) -> None:
    x = make()
    look = Looks(x)
    assert look(x) == 0 and look.seconds["hash"] == 0


def test_memory_that_was_shrunk_under_a_tensor_is_not_read() -> None:
    x = torch.arange(16.0)
    look = Looks(x)
    x.untyped_storage().resize_(8)
    look.state.nbytes = 8
    assert look(x) == 0 and look.seconds["hash"] == 0


def test_content_leaves_lazy_modules_alone(record: Record) -> None:
    """Their parameters have no shape until the first call, whose own ops are given them."""
    rank = record(
        lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())(torch.randn(3, 5)).sum().backward(),
        data="full",
        dedup="content",
    )
    assert calls(rank, kind="aten", op="aten::addmm") and not unseen(rank)
