"""Tensors in an NPU's private formats: recorded as they are logically, with the format. Run with `make test-npu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump, replay
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.config import STATISTICS
from aten_dump.store.checking.verification import verify

FORMATS = {"NC1HWC0": 3, "FRACTAL_Z": 4, "FRACTAL_NZ": 29}
SHAPES = {"NC1HWC0": (2, 5, 4, 3), "FRACTAL_Z": (20, 5, 3, 3), "FRACTAL_NZ": (20, 24)}


@pytest.fixture(autouse=True)
def private_formats_allowed() -> Iterator[None]:
    npu: Any = torch.get_device_module("npu")
    npu.config.allow_internal_format = True
    yield
    npu.config.allow_internal_format = False


def cast(tensor: Tensor, name: str) -> Tensor:
    made: Tensor = torch.ops.npu.npu_format_cast(tensor.to("npu"), FORMATS[name])
    assert torch.ops.npu.get_npu_format(made) == FORMATS[name]
    return made


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def recorded(path: Path, body: Callable[[], object], **config: Any) -> Any:
    with DumpMode(DumpConfig(path=path, **{"data": "full", **config})) as dump:
        body()
        dump.step()
    rank = open_dump(path).step(0).rank(0)
    assert [note.message for note in rank.notes if note.code == "unreadable"] == []
    return rank


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_elements_are_those_of_the_logical_layout(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    logical = drawn(*SHAPES[name]).to(dtype)
    x = cast(logical, name)
    rank = recorded(tmp_path / "dump", lambda: x.exp())
    value = rank.value("Aten.exp.0.forward.input.0")
    assert (value.private_format, value.stride, value.dtype) == (name, logical.stride(), dtype)
    assert torch.equal(value.tensor(), logical)
    assert value.hash == xxhash.xxh3_64_hexdigest(logical.view(torch.uint8).numpy().tobytes())
    for statistic, expected in zip(STATISTICS, compute(logical, STATISTICS), strict=True):
        assert getattr(value.stats, statistic) == pytest.approx(expected, rel=1e-3, abs=1e-3), statistic
    assert rank.value("Aten.exp.0.forward.output.0").private_format is None
    assert [op.op for op in replay(tmp_path / "dump").ops] == ["aten::exp"]


def test_views_and_writes_in_place(tmp_path: Path) -> None:
    logical = drawn(20, 24)
    x = cast(logical, "FRACTAL_NZ")

    def body() -> None:
        (x[2:5, ::2] * 2, x.t().exp(), x[:1].expand(4, 24).neg())
        x.mul_(3)
        x.sin()

    rank = recorded(tmp_path / "dump", body)
    found = {call.op: call.inputs[0][0] for call in rank.calls if call.kind == "aten"}
    assert torch.equal(found["aten::mul.Tensor"].tensor(), logical[2:5, ::2])
    assert torch.equal(found["aten::exp"].tensor(), logical.t())
    assert torch.equal(found["aten::neg"].tensor(), logical[:1].expand(4, 24))
    assert torch.equal(found["aten::sin"].tensor(), logical * 3)
    assert {found[op].private_format for op in ("aten::mul.Tensor", "aten::exp", "aten::sin")} == {"FRACTAL_NZ"}


def test_the_format_is_known_without_data(tmp_path: Path) -> None:
    x = cast(drawn(20, 24), "FRACTAL_NZ")
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="structure")) as dump:
        x.exp()
        dump.step()
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert rank.value("Aten.exp.0.forward.input.0").private_format == "FRACTAL_NZ"


def test_a_sample_is_of_the_logical_layout(tmp_path: Path) -> None:
    logical = drawn(20, 24)
    x = cast(logical, "FRACTAL_NZ")
    rank = recorded(tmp_path / "dump", lambda: x.exp(), sample=100)
    assert torch.equal(rank.tensor("Aten.exp.0.forward.input.0").flatten(), logical.flatten()[:100])


def test_what_is_recorded_is_not_changed(tmp_path: Path) -> None:
    """The program's tensor keeps its format, and its results are those of the bare program."""
    x = cast(drawn(20, 24).half(), "FRACTAL_NZ")
    bare = (x @ x.t()).cpu()
    found: list[Tensor] = []
    recorded(tmp_path / "dump", lambda: found.append(x @ x.t()))
    assert torch.equal(found[0].cpu(), bare) and torch.ops.npu.get_npu_format(x) == FORMATS["FRACTAL_NZ"]


def laid_out(logical: Tensor, name: str) -> Tensor:
    """Lay out elements as a format does, padded with zeros; the shapes are those of the device's documentation."""
    if name == "FRACTAL_NZ":  # [M, N] -> [N1, M1, M0, N0]
        m, n = (-(-length // 16) for length in logical.shape)
        padded = torch.zeros(m * 16, n * 16)
        padded[: logical.shape[0], : logical.shape[1]] = logical
        return padded.view(m, 16, n, 16).permute(2, 0, 1, 3).contiguous()
    count, channels, height, width = logical.shape
    c1 = -(-channels // 16)
    if name == "NC1HWC0":
        padded = torch.zeros(count, c1 * 16, height, width)
        padded[:, :channels] = logical
        return padded.view(count, c1, 16, height, width).permute(0, 1, 3, 4, 2).contiguous()
    n1 = -(-count // 16)  # FRACTAL_Z: [N, C, H, W] -> [C1*H*W, N1, N0, C0]
    padded = torch.zeros(n1 * 16, c1 * 16, height, width)
    padded[:count, :channels] = logical
    parts = padded.view(n1, 16, c1, 16, height, width).permute(2, 4, 5, 0, 1, 3)
    return parts.reshape(c1 * height * width, n1, 16, 16)


@pytest.mark.parametrize("trigger", [None, "nonfinite"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_memory_as_it_lies_is_stored_on_request(tmp_path: Path, name: str, trigger: Any) -> None:
    logical = drawn(*SHAPES[name])
    x = cast(logical, name)

    def body() -> None:
        x.exp()
        x[1:].neg()
        x.mul_(2)
        if trigger:
            (x * torch.inf).log()

    rank = recorded(tmp_path / "dump", body, private_formats="both", trigger=trigger)
    value = rank.value("Aten.exp.0.forward.input.0")
    memory = value.private_memory
    assert (memory.dtype, memory.device, memory.has_data) == (torch.float32, x.device, True)
    assert torch.equal(memory.tensor(), laid_out(logical, name)) and torch.equal(value.tensor(), logical)
    assert rank.value("Aten.neg.0.forward.input.0").private_memory == memory, "one for all views"
    assert torch.equal(rank.value("Aten.neg.0.forward.input.0").tensor(), logical[1:])
    written = rank.value("Aten.mul_.0.forward.output.0")
    assert written.private_memory != memory
    assert torch.equal(written.private_memory.tensor(), laid_out(logical * 2, name))
    assert torch.ops.npu.get_npu_format(x) == FORMATS[name] and torch.equal(x.cpu(), logical * 2)
    assert verify(rank.directory) == []


@pytest.mark.parametrize("config", [{}, {"private_formats": "both", "data": "statistic"}])
def test_the_memory_is_not_stored_else(tmp_path: Path, config: dict[str, Any]) -> None:
    x = cast(drawn(20, 24), "FRACTAL_NZ")
    rank = recorded(tmp_path / "dump", lambda: x.exp(), **config)
    value = rank.value("Aten.exp.0.forward.input.0")
    assert (value.private_format, value.private_memory) == ("FRACTAL_NZ", None)


def test_the_memory_of_what_is_first_seen_as_a_view(tmp_path: Path) -> None:
    logical = drawn(20, 24)
    x = cast(logical, "FRACTAL_NZ")
    rank = recorded(tmp_path / "dump", lambda: x[4:].exp(), private_formats="both", level="aten")
    memory = rank.value("Aten.exp.0.forward.input.0").private_memory
    assert torch.equal(memory.tensor().reshape(2, 2, 16, 16), laid_out(logical, "FRACTAL_NZ"))
