"""Hashes and statistics of recorded bytes are those that the recorder takes of the same tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.distance.value_distance import hash_as, statistics_of
from aten_dump.config import DataKind, HashName
from aten_dump.dump import Value
from tests.models import build

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "small": lambda: torch.randn(3, 5),
    "large": lambda: torch.randn(70, 90),
    "transposed": lambda: torch.randn(70, 90).t(),
    "every second": lambda: torch.randn(70, 90)[:, ::2],
    "half": lambda: torch.randn(33).bfloat16(),
    "integers": lambda: torch.arange(-5, 9),
    "bool": lambda: torch.randn(40) > 0,
    "scalar": lambda: torch.tensor(-2.5),
    "specials": lambda: torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2.0]),
    "conjugate": lambda: torch.randn(4, 6, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(9, dtype=torch.complex64).conj().imag,
}


def recorded(path: Path, tensor: torch.Tensor, data: DataKind, hash: HashName = "xxh3") -> Value:
    with DumpMode(DumpConfig(path=path, data=data, hash=hash, level="aten")):
        torch.ops.aten.alias(tensor)
    value: Value = open_dump(path).rank(0, 0).calls[0].inputs[0][0]
    return value


@pytest.mark.parametrize("algorithm", ["xxh3", "md5", "crc32", "sha256"])
@pytest.mark.parametrize("kind", TENSORS)
def test_they_are_the_recorder_s(tmp_path: Path, kind: str, algorithm: HashName) -> None:
    tensor = TENSORS[kind]()
    bytes_alone = recorded(tmp_path / "tensor", tensor, "tensor")
    hashed = recorded(tmp_path / "hash", tensor, "hash", algorithm)
    assert bytes_alone.hash is None and hash_as(bytes_alone, hashed) == hashed.hash
    described = recorded(tmp_path / "statistic", tensor, "statistic")
    found = statistics_of(bytes_alone)
    assert (found is None) == tensor.is_complex()
    for name, mine in (found or {}).items():
        theirs = described.stats[name]
        assert mine == theirs or mine == pytest.approx(theirs, rel=1e-6, abs=1e-9, nan_ok=True), name


def test_what_has_no_bytes_has_neither(tmp_path: Path) -> None:
    hashed = recorded(tmp_path / "hash", torch.randn(5), "hash")
    described = recorded(tmp_path / "statistic", torch.randn(5), "statistic")
    empty = recorded(tmp_path / "empty", torch.randn(0), "tensor")
    for value in (hashed, described, empty):
        assert hash_as(value, hashed) is None and statistics_of(value) is None


@pytest.mark.parametrize("lean", ["hash", "statistic"])
@pytest.mark.parametrize("swapped", [False, True], ids=["bytes first", "bytes second"])
def test_two_dumps_of_other_data_are_compared(tmp_path: Path, lean: DataKind, swapped: bool) -> None:
    """Of an equal run they are the same; a bug is found."""

    def run(name: str, data: DataKind, scale: float = 1.0) -> Path:
        program = build("resnet")
        with DumpMode(DumpConfig(path=tmp_path / name, data=data), model=program.model) as dump:
            (program.loss(program.model) * scale).backward()
            dump.step()
        return tmp_path / name

    pairs = {
        name: [run(f"{name} tensor", "tensor"), run(f"{name} {lean}", lean, scale)]
        for name, scale in (("same", 1.0), ("bug", 1.5))
    }
    found = {name: compare(*(reversed(pair) if swapped else pair)) for name, pair in pairs.items()}
    assert found["same"].exit_code == 0 and found["bug"].exit_code == 1
