"""Hashes are of the elements in row-major order, by the algorithm asked for."""

from __future__ import annotations

import hashlib
import math
import re
import resource
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data.hashes import hash_later, hash_of, statistics_of
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.config import STATISTICS as STATISTIC_NAMES
from aten_dump.store.records import HASH, STATISTICS
from aten_dump.store.writing.checksums import HASHERS, HASHES
from tests.capture.bits import calls, raw
from tests.store.memory_sink import MemorySink

Record = Callable[..., Any]

ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "xxh3": lambda data: xxhash.xxh3_64_digest(data),
    "md5": lambda data: hashlib.md5(data).digest(),
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}

TENSORS: dict[str, Callable[[], Tensor]] = {
    "small": lambda: torch.randn(3),
    "large": lambda: torch.randn(300, 1001),
    "transposed": lambda: torch.randn(30, 41).t(),
    "transposed, no matrix": lambda: torch.randn(2, 30, 41, 5).transpose(1, 2),
    "sliced": lambda: torch.randn(1000)[3::7],
    "expanded": lambda: torch.randn(5, 1).expand(5, 9),
    "channels_last": lambda: torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2),
    "bfloat16": lambda: torch.randn(77).bfloat16(),
    "bool": lambda: torch.rand(77) > 0.5,
    "complex128": lambda: torch.randn(7, dtype=torch.complex128),
    "conjugate": lambda: torch.randn(7, dtype=torch.complex64).conj(),
    "conjugate, expanded": lambda: torch.randn(5, 1, 2, dtype=torch.complex64).conj().transpose(0, 2).expand(2, 9, 5),
    "negative, expanded": lambda: torch.randn(5, 1, dtype=torch.complex64).conj().imag.expand(5, 9),
    "float8": lambda: torch.randn(9).to(torch.float8_e4m3fn),
    "empty": lambda: torch.empty(0, 3),
    "scalar": lambda: torch.tensor(5),
    "nan": lambda: torch.tensor([float("nan"), -0.0, 0.0]),
}


def digest(found: Any) -> str:
    return found.hex() if isinstance(found, (bytes, bytearray)) else str(found).lower()


def recorded_hash(record: Record, tensor: Tensor, **config: Any) -> str:
    rank = record(lambda: tensor.detach(), level="aten", **{"data": "hash", **config})
    return digest(calls(rank, kind="aten")[-1].inputs[0][0].hash)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hash_is_that_of_the_bytes(record: Record, algorithm: str, name: str) -> None:
    tensor = TENSORS[name]()
    assert recorded_hash(record, tensor, hash=algorithm) == ALGORITHMS[algorithm](raw(tensor)).hex()


@pytest.mark.parametrize("data", ["hash", "full"])
def test_default_is_xxh3(record: Record, data: str) -> None:
    x = torch.randn(50)
    assert recorded_hash(record, x, data=data) == xxhash.xxh3_64_hexdigest(raw(x))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hash_taken_in_pieces_is_that_of_the_whole(algorithm: str) -> None:
    data, hasher = raw(torch.randn(1000)), HASHERS[algorithm]()
    for start in range(0, len(data), 700):
        hasher.update(memoryview(data)[start : start + 700])
    assert hasher.digest() == HASHES[algorithm](data) == ALGORITHMS[algorithm](data)


def test_one_changed_bit_changes_the_hash(record: Record) -> None:
    x = torch.zeros(1000)
    before = recorded_hash(record, x)
    x[500] = -0.0
    assert recorded_hash(record, x) != before


def test_permuted_elements_change_the_hash(record: Record) -> None:
    x = torch.randn(1000)
    assert recorded_hash(record, x) != recorded_hash(record, x.flip(0))


def test_a_hash_taken_at_once_names_its_value_and_its_time_is_counted() -> None:
    sink, seconds, x = MemorySink(), {"hash": 0.0, "statistics": 0.0}, torch.randn(40, 50).t()
    hash_of(sink.emit, x, 17, "crc32", seconds)
    assert [tuple(record) for record in sink.records] == [(HASH, 17, zlib.crc32(raw(x)).to_bytes(4, "big"))]
    assert seconds["hash"] > 0 and seconds["statistics"] == 0


def test_statistics_taken_at_once_are_those_named_in_that_order() -> None:
    sink, seconds = MemorySink(), {"hash": 0.0, "statistics": 0.0}
    x = torch.tensor([3.0, -1.0, 0.0], requires_grad=True)
    statistics_of(sink.emit, x, 4, ("max", "negative", "count"), seconds)
    assert [tuple(record) for record in sink.records] == [(STATISTICS, 4, [3.0, 1, 3])]
    assert seconds["statistics"] > 0 and seconds["hash"] == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(300, 200)[:, ::3],
        torch.randint(-9, 9, (90, 70), dtype=torch.int16).t()[1:],
        (torch.rand(200, 90) > 0.5)[::2, 1:],
        torch.randn(30, 50, dtype=torch.complex64)[:, ::2],
        torch.randn(700, 700)[:, 1:],  # more than are copied at once
        torch.tensor([[1.0, math.nan, -math.inf, 0.0]] * 40)[:, 1:],
    ],
)
def test_statistics_of_elements_with_gaps_are_those_of_a_copy_without(tensor: Tensor) -> None:
    sink, seconds = MemorySink(), {"hash": 0.0, "statistics": 0.0}
    copied = compute(tensor.contiguous(), STATISTIC_NAMES)
    statistics_of(sink.emit, tensor, 4, STATISTIC_NAMES, seconds)
    assert repr([tuple(record) for record in sink.records]) == repr([(STATISTICS, 4, copied)])


def test_statistics_of_repeated_elements_are_those_of_a_copy() -> None:
    sink, seconds, tensor = MemorySink(), {"hash": 0.0, "statistics": 0.0}, torch.randn(64, 1).expand(64, 300)
    statistics_of(sink.emit, tensor, 4, STATISTIC_NAMES, seconds)
    ((_, _, found),) = [tuple(record) for record in sink.records]
    assert found == pytest.approx(compute(tensor.contiguous(), STATISTIC_NAMES), rel=1e-6)


LARGE: dict[str, Callable[[], Tensor]] = {  # more than are copied at once
    "expanded": lambda: torch.randn(1, 1, 300, 300).expand(5, 7, 300, 300),
    "expanded columns": lambda: torch.randn(1001, 1, 2).expand(1001, 700, 2),
    "expanded and transposed": lambda: torch.randn(300, 301).t().expand(9, 301, 300),
    "windows": lambda: torch.randn(2000).unfold(0, 600, 1),
    "gaps": lambda: torch.randn(1100, 1100)[:, 1:],
    "transposed with gaps": lambda: torch.randn(1100, 1100)[:, 1:].t(),
    "transposed": lambda: torch.randn(1500, 1100).bfloat16().t(),
    "bool": lambda: (torch.rand(1, 999) > 0.5).expand(4000, 999),
    "complex128": lambda: torch.randn(1, 99, dtype=torch.complex128).expand(2000, 99),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("algorithm", ["xxh3", "crc32"])
def test_the_hash_of_many_elements_that_do_not_lie_in_a_row(algorithm: str, name: str) -> None:
    sink, seconds, tensor = MemorySink(), {"hash": 0.0, "statistics": 0.0}, LARGE[name]()
    hash_of(sink.emit, tensor, 3, algorithm, seconds)
    assert [tuple(record) for record in sink.records] == [(HASH, 3, ALGORITHMS[algorithm](raw(tensor)))]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_expanded_tensor_takes_no_more_memory_than_what_it_stands_on(record: Record) -> None:
    mask = torch.zeros(1, 256, 256)
    recorded_hash(record, mask.expand(2, 256, 256), data="full")
    peak_mib()
    before = peak_mib()
    recorded_hash(record, mask.expand(2048, 256, 256), data="full")
    assert peak_mib() - before < 256, "512 MiB of float32 were made"


def peak_mib() -> float:
    """Return the most memory that this process has had, and begin anew."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return int(re.findall(r"VmHWM:\s*([0-9]+)", status)[0]) / 1024


@pytest.mark.parametrize("tensor", [torch.ones(3, device="cpu"), torch.empty(0)])
def test_the_hash_of_a_tensor_on_the_host_is_not_put_off(tensor: Tensor) -> None:
    sink = MemorySink()
    assert not hash_later(sink, tensor, 1, "xxh3")
    assert sink.records == []


@pytest.mark.parametrize("data", ["hash", "full"])
def test_a_view_expanded_beyond_all_memory_is_hashed_once(tmp_path: Path, data: str) -> None:
    x = torch.arange(4.0)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data=data)):
        x.view(4, 1).expand(4, 2**40).t()
        x.view(4, 1)[:, :]
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    expanded, plain = (rank[f"Aten.{name}.0.forward"].outputs for name in ("expand", "view"))
    assert expanded.hash == plain.hash is not None


def test_a_conjugate_that_is_expanded_costs_the_memory_of_its_elements_once(tmp_path: Path) -> None:
    x = torch.ones(4, dtype=torch.complex64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="hash")):
        x.conj().view(4, 1).expand(4, 2**25)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, "of 1 GiB of elements"
    assert open_dump(tmp_path / "dump").rank(0, 0)["Aten.expand.0.forward"].outputs.hash is not None
