"""Data of tensors on a device are those of the moment, in batches, on streams, and of two devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data import device_batches, device_copies
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.capture.devices import made_current
from aten_dump.config import STATISTICS
from tests import devices

FEW = ("count", "min", "max", "mean", "l2norm", "nan", "posinf", "neginf")


def record(path: Path, body: Callable[[], object], **config: Any) -> Any:
    with DumpMode(DumpConfig(path=path, level="aten", stacks=False, **config)) as dump:
        body()
        dump.step()
    return open_dump(path).step(0).rank(0)


def test_kinds_of_numbers_in_one_batch(tmp_path: Path) -> None:
    xs = [torch.tensor([1.0, math.nan]), torch.tensor([math.inf, -1.0]), torch.arange(5), torch.tensor([True, False])]
    xs += [torch.randn(3000).half(), torch.randn(7).bfloat16(), torch.randn(2049).double(), torch.tensor(2.5)]
    xs += [torch.randn(4, 6).t(), torch.randn(9)[::2], torch.empty(0), torch.tensor([2**62, -(2**62), 5])]
    on_device = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=devices.kind()).copy_(x) for x in xs]
    rank = record(tmp_path / "dump", lambda: [x.clone() for x in on_device], data="full")
    clones = [c for c in rank.calls if c.op == "aten::clone"]
    for x, call in zip(xs, clones, strict=True):
        value = call.inputs[0][0]
        assert torch.equal(value.tensor().nan_to_num(7), x.nan_to_num(7))
        assert value.hash == xxhash.xxh3_64_hexdigest(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, expected in zip(STATISTICS, compute(x, STATISTICS), strict=True):
            mine = getattr(value.stats, name)
            assert mine == expected or mine == pytest.approx(expected, rel=1e-4, abs=1e-4, nan_ok=True), (name, x)


@pytest.mark.parametrize("staging", [0, 100_000, 1 << 26])
def test_bytes_are_those_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staging: int) -> None:
    """The program writes in place while copies may be under way."""
    monkeypatch.setattr(device_copies, "STAGING_BYTES", staging)
    x = torch.zeros(10_000).to(devices.kind())

    def body() -> None:
        for i in range(20):
            x.fill_(float(i))

    for data in ("tensor", "hash"):
        rank = record(tmp_path / data, body, data=data)
        for i, call in enumerate(c for c in rank.calls if c.op.startswith("aten::fill_")):
            expected = torch.full((10_000,), float(i))
            if data == "tensor":
                assert torch.equal(call.outputs.tensor(), expected)
            else:
                assert call.outputs.hash == xxhash.xxh3_64_hexdigest(expected.numpy().tobytes())
    copier = device_copies.copier_of(x.device)
    assert copier is not None and copier._staged_bytes == 0


def test_values_of_two_streams(tmp_path: Path) -> None:
    """Results are fetched on the stream that made them, and the program's current stream stays what it was."""
    side = torch.Stream(device=devices.kind())
    x = torch.ones(10).to(devices.kind())
    after = []

    def body() -> None:
        x.neg()
        with device_copies.on_stream(side):
            x.exp()
            after.append(torch.accelerator.current_stream())

    before = torch.accelerator.current_stream()
    rank = record(tmp_path / "dump", body, data="statistic", statistics=FEW)
    assert after == [side] and torch.accelerator.current_stream() == before
    found = {call.op: call.outputs.stats.max for call in rank.calls}
    assert found["aten::neg"] == -1 and found["aten::exp"] == pytest.approx(math.e)


def test_a_batch_that_nobody_fills_is_sent_by_a_tick(tmp_path: Path) -> None:
    import time

    x = torch.ones(10).to(devices.kind())
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="statistic", level="aten")):
        x.neg()
        time.sleep(0.5)
        rank = open_dump(tmp_path / "dump").step(0).rank(0)
        assert [call.outputs.stats.max for call in rank.calls if call.op == "aten::neg"] == [-1]


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    "config",
    [{"data": "hash"}, {"data": "statistic"}, {"data": "tensor"}, {"data": "full"}, {"data": "full", "trigger": "nonfinite"}],
    ids=str,
)  # fmt: skip
def test_a_program_on_two_devices_keeps_its_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(device_batches, "BATCH_VALUES", 2)
    weight, found = torch.randn(64, 64, device=devices.kind(0), requires_grad=True), []

    def body() -> None:
        for _ in range(5):
            there = (weight * 2).to(devices.kind(1)).tanh()
            found.append(torch.accelerator.current_device_index())
            there.sum().to(devices.kind(0)).backward()
            found.append(torch.accelerator.current_device_index())

    with DumpMode(DumpConfig(path=tmp_path / "dump", **config)) as dump:
        body()
        dump.step()
        found.append(torch.accelerator.current_device_index())
    found.append(torch.accelerator.current_device_index())
    assert set(found) == {0}
    if config == {"data": "full"}:
        tanh = open_dump(tmp_path / "dump").step(0).rank(0)["Aten.tanh.0.forward"].outputs
        assert str(tanh.device) == devices.kind(1)
        torch.testing.assert_close(tanh.tensor(), (weight.detach().cpu() * 2).tanh())


def test_a_device_is_the_current_one_only_meanwhile() -> None:
    last = torch.accelerator.device_count() - 1
    for index in (0, last):
        with made_current(torch.device(devices.kind(index))):
            assert torch.accelerator.current_device_index() == index
        assert torch.accelerator.current_device_index() == 0
    with made_current(torch.device("cpu")):
        assert torch.accelerator.current_device_index() == 0


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two devices")
def test_a_kernel_is_launched_on_the_device_of_its_elements() -> None:
    launches = pytest.importorskip("aten_dump.capture.data.statistics.fused_launches", exc_type=ImportError)
    seen: list[int] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda *args, num_warps: seen.append(torch.accelerator.current_device_index())

    for index in (0, 1):
        x = torch.ones(2, device=devices.kind(index))
        launches._launch((Kernel(), None, False), 1, x, x, ())
        assert torch.accelerator.current_device_index() == 0
    assert seen == [0, 1]
