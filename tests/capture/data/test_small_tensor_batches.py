"""Small values are handled many at a time: what is recorded of each is what it would be alone."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch import Tensor

from aten_dump import DumpConfig, open_dump
from aten_dump.capture.data import small_tensor_batches as batches
from aten_dump.capture.data.wanted_data import WantedData
from aten_dump.store.index_reader import read_index
from aten_dump.store.records import BLOB, DATA, HASH
from aten_dump.store.records import STATISTICS as STATISTICS_KIND
from tests.capture.bits import assert_same, calls, raw, values
from tests.capture.children import kill, started, wait_until_written
from tests.checkout import ROOT
from tests.store.memory_sink import MemorySink

Record = Callable[..., Any]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.int32]


def mixed(count: int) -> list[Tensor]:
    shapes = [(), (1,), (16,), (3, 5), (0,), (2, 0), (1000,), (7, 1, 2)]
    return [(10 * torch.randn(shapes[i % 8])).to(DTYPES[i % len(DTYPES)]) for i in range(count)]


@pytest.mark.filterwarnings("ignore:Casting complex")
def test_thousands_of_every_kind(record: Record) -> None:
    """Over several batches: bytes, statistics and hash of each are its own."""
    tensors = mixed(3000)

    def body() -> None:
        for tensor in tensors:
            tensor.clone()

    rank = record(body, data="full", level="aten", stacks=False)
    clones = calls(rank, op="aten::clone")
    assert len(clones) == len(tensors)
    for tensor, call in zip(tensors, clones, strict=True):
        for value in (call.inputs[0][0], call.outputs):
            assert_same(tensor, value.tensor())
            assert value.hash == xxhash.xxh3_64_hexdigest(raw(tensor))
            assert value.stats.count == tensor.numel()
            if tensor.numel() and not tensor.is_complex():
                assert value.stats.max == tensor.double().max().item()


def test_only_what_is_asked_for_of_each_value_is_recorded() -> None:
    """Values to be stored, to be described, and both: in one order or the other."""
    wanted, asked = WantedData(True, ("max",), "xxh3"), [(True, True), (True, False), (False, True)]
    for order in (asked, asked[::-1]):
        sink = MemorySink()
        waiting = batches.Batches(sink, wanted, 100, 100_000)
        for number, (stored, facts) in enumerate(order, 1):
            waiting.add(torch.uint8, stored, facts, number, bytes([number]))
        waiting.flush()
        described = [number for number, (_, facts) in enumerate(order, 1) if facts]
        assert sorted((row.value, *row[2:]) for row in sink.of(STATISTICS_KIND)) == [(n, [n]) for n in described]
        assert sorted(row.value for row in sink.of(HASH)) == described
        bytes_of = {row.value: sink.blobs[row.blob][row.offset] for row in sink.of(DATA)}
        assert bytes_of == {number: number for number, (stored, _) in enumerate(order, 1) if stored}


def test_a_batch_is_sent_when_its_bytes_or_its_values_are_all_there() -> None:
    for most_values, most_bytes in ((100, 8), (4, 100)):
        sink = MemorySink()
        waiting = batches.Batches(sink, WantedData(True, (), ""), most_values, most_bytes)
        for number in range(1, 9):
            waiting.add(torch.uint8, True, False, number, b"ab")
            assert len(sink.blobs) == number // 4


@pytest.mark.parametrize("data", ["tensor", "full"])
def test_small_values_share_blobs(record: Record, tmp_path: Path, data: str) -> None:
    """One blob of a dtype for many values, which stock safetensors opens as that dtype."""
    xs = [torch.full((16,), float(i)) for i in range(500)]
    rank = record(lambda: [x.exp() for x in xs], data=data, level="aten")
    index = read_index(tmp_path / "dump0" / "step0" / "rank0")
    assert len(index.rows[BLOB]) < 100, "of 1000 values; ticks may send a batch early"
    assert {row[5] for row in index.rows[BLOB]} == {"F32"}
    assert len({(row[2], row[3]) for row in index.rows[DATA]}) == 1000
    for x, call in zip(xs, calls(rank, op="aten::exp"), strict=True):
        assert_same(x.exp(), call.outputs.tensor())


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "transposed": lambda x: x.t(),
    "every_second": lambda x: x.view(-1)[::2],
    "reshaped": lambda x: x.view(6, 4),
    "expanded": lambda x: x[0, :1].expand(50),
    "as_bytes": lambda x: x.view(torch.uint8),
    "whole": lambda x: x.view(-1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("first", ["base", "view"])
@pytest.mark.parametrize("size", [1, 200])
def test_views_of_small_storages(record: Record, view: str, first: str, size: int) -> None:
    """Whichever comes first, while the batch is open or after it was sent, and after a write."""
    base = torch.randn(4 * size, 6 * size)[:4, :6].contiguous() if size == 1 else torch.randn(4, 6 * size)[:, :6]
    expected: list[Tensor] = []

    def look() -> None:
        seen = VIEWS[view](base) if base.is_contiguous() or view in ("row", "column", "transposed") else base.t()
        for tensor in (base, seen, seen) if first == "base" else (seen, base, seen):
            tensor.sign()
            expected.append(tensor.clone())

    def body() -> None:
        look()
        base.mul_(2)
        look()

    rank = record(body, data="full", level="aten")
    recorded = [call.inputs[0][0] for call in calls(rank, op="aten::sign")]
    assert len(recorded) == len(expected) == 6
    for value, tensor in zip(recorded, expected, strict=True):
        assert_same(tensor, value.tensor())
        assert value.hash == xxhash.xxh3_64_hexdigest(raw(tensor))
        assert value.stats.max == tensor.double().max().item()


def test_a_write_right_after_a_look_is_not_seen(record: Record) -> None:
    """The copy is taken when the value is seen, not when the batch is sent."""
    x = torch.zeros(8)

    def body() -> None:
        for i in range(2500):
            x.fill_(float(i))

    rank = record(body, data="full", level="aten", stacks=False)
    fills = calls(rank, op="aten::fill_.Scalar")
    assert len(fills) == 2500
    for i, call in enumerate(fills):
        value = call.outputs
        assert (value.stats.min, value.stats.max) == (i, i)
        assert value.tensor().tolist() == [i] * 8


@pytest.mark.parametrize("config", [{"max_bytes": 640}, {"sample": 3}, {"shard_bytes": 65536}])
def test_budgets_hold_for_small_values(record: Record, config: dict[str, int]) -> None:
    xs = [torch.full((16,), float(i)) for i in range(50)]
    rank = record(lambda: [x.neg() for x in xs], data="full", level="aten", **config)
    found = [call.inputs[0][0] for call in calls(rank, op="aten::neg")]
    readable = sum(value.has_data for value in found)
    assert readable == (5 if "max_bytes" in config else 50)
    assert [value.stats.max for value in found] == list(map(float, range(50)))
    assert [value.hash for value in found] == [xxhash.xxh3_64_hexdigest(raw(x)) for x in xs]


def test_ticks_while_values_come() -> None:
    """The writer's thread sends what waits at any moment; nothing is lost, doubled or mixed up."""
    sink = MemorySink()
    wanted = WantedData.of(DumpConfig(path="unused", data="full"))
    gathered = batches.Batches(sink, wanted, 50, 1 << 20)
    done = threading.Event()

    def ticks() -> None:
        while not done.is_set():
            gathered.tick()

    thread = threading.Thread(target=ticks)
    thread.start()
    for i in range(3000):
        gathered.add(DTYPES[i % 2], True, True, i, raw(torch.full((3,), float(i), dtype=DTYPES[i % 2])))
    done.set()
    thread.join()
    gathered.flush()
    assert {r[1]: r[2][1] for r in sink.of(STATISTICS_KIND)} == {i: float(i) for i in range(3000)}
    assert len(sink.of(STATISTICS_KIND)) == len(sink.of(HASH)) == len(sink.of(DATA)) == 3000
    for _, value, blob, start, _layout in sink.of(DATA):
        expected = raw(torch.full((3,), float(value), dtype=DTYPES[value % 2]))
        assert sink.blobs[blob][start : start + len(expected)] == expected


def test_killed_inside_a_batch(tmp_path: Path) -> None:
    """What a hanging program has said is on file within half a second, though no batch was full; killed then, it reads."""
    script = f"""
import sys, time, torch
sys.path.insert(0, {str(ROOT)!r})
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(path={str(tmp_path / "dump")!r}, data="full", level="aten")) as dump:
    for i in range({batches.BATCH_VALUES // 8}):
        torch.full((16,), float(i)).exp_()
    print("hangs", flush=True)
    time.sleep(60)
"""
    child = started(script, "hangs", tmp_path / "said")
    wait_until_written(tmp_path / "dump", "aten::exp_", batches.BATCH_VALUES // 8)
    kill(child)
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    exps = calls(rank, kind="aten", op="aten::exp_")
    assert len(exps) == batches.BATCH_VALUES // 8
    for i, call in enumerate(exps):
        value = call.inputs[0][0]
        assert value.tensor().tolist() == [float(i)] * 16
        assert value.stats.max == i
        assert value.hash == xxhash.xxh3_64_hexdigest(raw(value.tensor()))


@pytest.mark.parametrize("index_bytes", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_killed_while_batches_are_sent(tmp_path: Path, index_bytes: int) -> None:
    script = f"""
import sys, torch
sys.path.insert(0, {str(ROOT)!r})
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(path={str(tmp_path / "dump")!r}, data="full", level="aten", stacks=False)) as dump:
    print("runs", flush=True)
    for i in range(10**9):
        torch.full((16,), float(i)).exp()
"""
    child = started(script, "runs", tmp_path / "said")
    index = tmp_path / "dump" / "step0" / "rank0" / "index.msgpack"
    deadline = time.monotonic() + 60
    while (not index.exists() or index.stat().st_size < index_bytes) and time.monotonic() < deadline:
        time.sleep(0.002)
    kill(child)
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert rank.missing
    read = 0
    for i, call in enumerate(calls(rank, kind="aten", op="aten::exp")):
        for value in values(call.inputs):
            if value.has_data:
                assert value.tensor().tolist() == [float(i)] * 16
                read += 1
            if value.stats:
                assert value.stats.max == i
    assert read > 0


def test_the_program_s_numpy_settings_do_not_matter(record: Record) -> None:
    import numpy as np

    x = torch.tensor([math.nan, math.inf, 1e300])
    with np.errstate(all="raise"):
        rank = record(lambda: x.double().mul(1e300).neg(), data="statistic", level="aten")
    assert calls(rank, op="aten::neg")[0].outputs.stats.nan == 1


class Late(MemorySink):
    """A sink that calls jobs when it is told to, as a thread of its own would."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Callable[[], Any]] = []

    def later(self, job: Callable[[], Any], nbytes: int) -> None:
        self.jobs.append(job)


@pytest.mark.parametrize("nbytes", [64, 2 * batches.AT_ONCE_BYTES])
def test_facts_of_a_few_bytes_are_computed_where_they_are_sent(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    compute = batches.compute

    def watched(*arguments: Any) -> Any:
        threads.append(bool(sink.jobs))
        return compute(*arguments)

    monkeypatch.setattr(batches, "compute", watched)
    sink = Late()
    waiting = batches.Batches(sink, WantedData(True, ("max",), "xxh3"), 9, 1 << 30)
    waiting.add(torch.complex64, True, True, 5, raw(torch.full((nbytes // 8,), 3 + 4j)))
    waiting.flush()
    (job,) = sink.jobs
    kinds = {record[0]: tuple(record) for record in job()}
    assert kinds[STATISTICS_KIND] == (STATISTICS_KIND, 5, [5.0]) and kinds[DATA] == (DATA, 5, 1, 0, 0) and HASH in kinds
    assert threads == [nbytes > batches.AT_ONCE_BYTES], "whether it was the job that computed"


def test_facts_that_cannot_be_computed_are_an_error_of_the_sink_not_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(batches, "compute", fail)
    sink = Late()
    waiting = batches.Batches(sink, WantedData(False, ("max",), ""), 9, 1 << 30)
    waiting.add(torch.complex64, False, True, 5, raw(torch.ones(3, dtype=torch.complex64)))
    waiting.flush()
    with pytest.raises(ZeroDivisionError):
        sink.jobs[0]()
