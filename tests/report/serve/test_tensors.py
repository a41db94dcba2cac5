"""Slices of tensors, their maps, histograms and elements, against torch's own indexing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.dump import RankDump, Value
from aten_dump.errors import ConfigError, MissingDataError
from aten_dump.report.html.payload.sections import Subject
from aten_dump.report.serve import tensor_requests as tensor_slices
from aten_dump.report.serve.served_dump import ServedDump
from aten_dump.report.serve.tensor_requests import (
    MIDDLE,
    NONFINITE,
    Slice,
    elements_section,
    map_section,
    shown_slice,
    tensor_section,
)
from aten_dump.report.units import format_number
from tests.report.sections_read import Read

TENSORS = {
    "plain": torch.randn(3, 5, 4),
    "transposed": torch.randn(6, 4, 5).permute(2, 0, 1),
    "part": torch.randn(8, 9, 7)[1:7:2, 2:5],
    "expanded": torch.randn(1, 5, 1).expand(3, 5, 4),
    "line": torch.randn(11),
    "one": torch.tensor(2.5),
    "none": torch.empty(3, 0),
    "half": torch.randn(4, 6).half(),
    "bfloat": torch.randn(4, 6).bfloat16(),
    "long": torch.arange(24).reshape(4, 6) - 12,
    "bool": torch.tensor([[True, False], [False, False]]),
    "complex": torch.randn(3, 4, dtype=torch.complex64),
    "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "sparse": torch.eye(4).to_sparse(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dumps") / "dump"
    with DumpMode(DumpConfig(path=path, data="full")):
        for tensor in TENSORS.values():
            tensor.detach()
    return path


@pytest.fixture
def rank(folder: Path) -> RankDump:
    return open_dump(folder).rank(0, 0)


def value_of(rank: RankDump, name: str) -> Value:
    return rank[f"Tensor.detach.{list(TENSORS).index(name)}.forward"].input_values()[0][1]


@pytest.mark.parametrize("name", TENSORS)
def test_a_slice_is_what_indexing_gives(name: str, rank: RankDump) -> None:
    tensor, value = TENSORS[name], value_of(rank, name)
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    n = tensor.dim()
    at = [size // 2 if size else 0 for size in tensor.shape]
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b] if n > 1 else [()]
    for dims in pairs:
        found = Slice.of(value.shape, dims, at).read(value)
        index: list[Any] = [slice(None) if dim in dims or n < 2 else at[dim] for dim in range(n)]
        expected = tensor[tuple(index)]
        expected = expected.t() if dims and dims[0] > dims[1] else expected if dims else expected.reshape(1, -1)
        assert torch.equal(found, expected.resolve_conj()), dims


def test_only_the_bytes_of_the_slice_are_read(rank: RankDump, monkeypatch: pytest.MonkeyPatch) -> None:
    value = value_of(rank, "plain")
    monkeypatch.setattr(tensor_slices, "MOST_BYTES", 80)
    assert Slice.of(value.shape, (1, 2), (1, 0, 0)).read(value).shape == (5, 4)
    with pytest.raises(MissingDataError, match="take other dimensions"):
        Slice.of(value.shape, (0, 2), (0, 0, 0)).read(value)
    read: list[int] = []
    inner = rank.source.read
    monkeypatch.setattr(rank.source, "read", lambda *given: read.append(given[3] - given[2]) or inner(*given))
    Slice.of(value.shape, (1, 2), (1, 0, 0)).read(value)
    assert read == [80]


@pytest.mark.parametrize(("dims", "at"), [((0, 3), ()), ((1, 1), ()), ((), (0, 0)), ((), (3, 0, 0))])
def test_what_is_not_there_is_refused(dims: tuple[int, ...], at: tuple[int, ...], rank: RankDump) -> None:
    with pytest.raises(ConfigError, match=r"\[3, 5, 4\]"):
        Slice.of(value_of(rank, "plain").shape, dims, at)


def read(section: bytes | None) -> Read:
    assert section is not None
    return Read(section)


def test_a_map_has_symmetric_colours(rank: RankDump) -> None:
    part = torch.tensor([[-4.0, 0.0, 2.0], [1.0, torch.nan, -torch.inf]])
    found = read(map_section(part, share=1, is_distance=False))
    assert found.json["limit"] == "4"
    assert found.columns["code"] == [0, MIDDLE, 191, 159, NONFINITE, NONFINITE]
    assert (found.json["low"], found.json["high"], sum(found.columns["bar"])) == ("-4", "2", 4)
    assert found.json["facts"] == {
        "elements": "6", "min": "-4", "max": "2", "mean": "-0.25", "l2norm": format_number(21**0.5), "zero": "1",
        "NaN": "1", "-Inf": "1",
    }  # fmt: skip


def test_a_large_map_keeps_what_stands_out() -> None:
    part = torch.full((1000, 3000), 0.01)
    part[777, 1234], part[5, 5] = -9.0, torch.nan
    found = read(map_section(part, share=1, is_distance=False))
    codes = np.array(found.columns["code"]).reshape(found.json["cells"])
    assert codes.shape == (256, 256)
    rows, columns = np.nonzero(codes == 0)
    assert {(row * 1000 // 256, column * 3000 // 256) for row, column in zip(rows, columns, strict=True)} <= {
        (row, column) for row in range(773, 778) for column in range(1222, 1235)
    }
    assert len(rows) and (codes == NONFINITE).any() and found.json["facts"]["NaN"] == "1"
    narrow = read(map_section(part, share=0.9, is_distance=False))
    assert narrow.json["limit"] == "0.01"


@pytest.mark.parametrize(
    "part", [torch.empty(0, 3), torch.zeros(2, 2), torch.full((2, 2), torch.nan), torch.tensor([[True]])]
)
def test_maps_of_little(part: torch.Tensor) -> None:
    found = read(map_section(part, share=0.99, is_distance=False))
    assert len(found.columns["code"]) == part.numel()


def test_units_of_the_last_place(rank: RankDump) -> None:
    half, bfloat = value_of(rank, "half"), value_of(rank, "bfloat")
    part = Slice.of(half.shape, (), ())
    with pytest.raises(MissingDataError, match="look at the difference"):
        shown_slice(part, half, bfloat, "ulp")
    one, other = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0 + 2**-22, torch.nan]])
    found = tensor_slices._steps_between(one, other)
    assert found.dtype == torch.float64
    assert float(found[0, 0]) == 2 and bool(found[0, 1].isnan())
    colours = read(map_section(torch.tensor([[0.0, 1.0, 1023.0]]), share=1, is_distance=True)).columns["code"]
    assert colours == [MIDDLE, 140, 254]


def test_the_difference_is_taken_in_float64(rank: RankDump) -> None:
    half, bfloat = value_of(rank, "half"), value_of(rank, "bfloat")
    part = Slice.of(half.shape, (), ())
    found = shown_slice(part, half, bfloat, "difference")
    assert torch.equal(found, TENSORS["half"].double() - TENSORS["bfloat"].double())
    assert torch.equal(shown_slice(part, half, bfloat, "other"), TENSORS["bfloat"].float())
    with pytest.raises(MissingDataError, match="there is none"):
        shown_slice(part, half, None, "ulp")
    with pytest.raises(MissingDataError, match=r"one of shape \[11\]"):
        shown_slice(part, half, value_of(rank, "line"), "difference")


def test_elements_are_told_in_six_digits() -> None:
    part = torch.randn(100, 40)
    found = json.loads(json.dumps(read(elements_section(part, 90, 35)).json))
    assert found["rows"] == [[format_number(float(x)) for x in line] for line in part[90:100, 35:40]]
    assert (found["shape"], found["from"]) == ([100, 40], [90, 35])
    assert read(elements_section(part, 1000, 1000)).json["rows"] == []


def test_requests(folder: Path, rank: RankDump) -> None:
    served = ServedDump(Subject(open_dump(folder), "1"))
    value = value_of(rank, "plain")
    name = f"target/0/0/{value.id}"
    found = read(tensor_section(served, {"value": name, "dims": "0,2", "at": "0,3,0", "share": "1"}))
    assert found.json["shape"] == [3, 4] and found.json["facts"]["max"] == format_number(
        float(TENSORS["plain"][:, 3].max())
    )
    elements = read(tensor_section(served, {"value": name, "part": "elements", "row": "2", "column": "1"}))
    assert elements.json["rows"] == [[format_number(float(x)) for x in line] for line in TENSORS["plain"][0, 2:, 1:]]
    assert tensor_section(served, {"value": f"target/0/0/{10**8}"}) is None
    assert tensor_section(served, {"value": f"target/7/0/{value.id}"}) is None


def test_a_value_without_bytes_says_why(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic")):
        torch.ones(3).exp()
    served = ServedDump(Subject(open_dump(tmp_path / "dump"), "1"))
    value = open_dump(tmp_path / "dump").rank(0, 0).values[0]
    with pytest.raises(MissingDataError, match="data="):
        tensor_section(served, {"value": f"target/0/0/{value.id}"})
