"""Who is reduced on a device, and by what. On a device: tests/accelerator, tests/cuda."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from aten_dump.capture.data import device_batches
from aten_dump.capture.data.device_batches import DeviceBatches
from aten_dump.capture.data.host_memory import as_array
from aten_dump.capture.data.statistics import fused_results
from aten_dump.capture.data.statistics.joined_results import join
from aten_dump.capture.data.statistics.on_device import finish
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.config import STATISTICS
from aten_dump.store.records import NOTE
from tests.capture.data.statistics.launches_by_torch import Launches
from tests.devices import here
from tests.store.memory_sink import MemorySink


def numbers() -> dict[str, torch.Tensor]:
    return {
        "float": torch.randn(3000), "nan": torch.tensor([math.nan, 1.0]), "int": torch.arange(-4, 9), "bool": torch.rand(9) > 0.5,
        "double": torch.randn(7).double(), "byte": torch.tensor([0, 5, 255], dtype=torch.uint8), "half": torch.randn(2049).half(),
        "transposed": torch.randn(30, 41).t(), "gaps": torch.randn(100)[::3], "scalar": torch.tensor(2.5),
        "negative": torch.randn(9, dtype=torch.complex64).conj().imag,
    }  # fmt: skip


def test_joined_statistics_are_those_of_each_tensor_alone() -> None:
    batches = DeviceBatches(MemorySink(), STATISTICS)
    named = numbers()
    tensors = list(named.values())
    assert named["negative"].is_neg()
    together, separate = join([(number, *batches.reduce(tensor)) for number, tensor in enumerate(tensors)])
    found = list(separate(as_array(together.cpu())))
    assert [(value, sum(rows)) for value, rows, _ in found] == [(i, t.numel()) for i, t in enumerate(tensors)]
    for value, rows, reduced in found:
        expected = compute(tensors[value].cpu(), STATISTICS)
        for name, mine, alone in zip(STATISTICS, finish(rows, reduced, STATISTICS), expected, strict=True):
            assert mine == alone or mine == pytest.approx(alone, rel=1e-5, nan_ok=True), (list(named)[value], name)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3, device="cpu"), torch.ones(3, dtype=torch.complex64), torch.empty(0)],
    ids=["host", "dtype", "empty"],
)
def test_what_is_not_reduced_on_a_device_is_left_to_others(tensor: torch.Tensor) -> None:
    sink = MemorySink()
    batches = DeviceBatches(sink, STATISTICS)
    assert not batches.add(1, tensor, False)
    batches.flush()
    batches.tick()
    assert sink.records == []


@pytest.fixture
def triton_on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if kernels could be had for the CPU: Triton fails there, as it may on a device with a broken compiler."""
    monkeypatch.setattr(device_batches, "has_triton", lambda kind: True)
    device_batches._triton_failed.clear()  # compiled code asks this set, whatever the name stands for
    yield
    device_batches._triton_failed.clear()


@pytest.mark.usefixtures("triton_on_the_host")
def test_where_triton_fails_the_dump_says_so_once_and_it_is_not_tried_again() -> None:
    sink = MemorySink()
    batches = DeviceBatches(sink, ("min",))
    for value in (1, 2):
        assert not batches._add_fused(value, torch.ones(3), here(), False)
    assert not batches._has_any()
    (note,) = sink.of(NOTE)
    assert (note.code, note.count) == ("triton", 1)
    assert note.message.startswith(f"no Triton for {here().type}, statistics take several passes: ")
    assert "\n" not in note.message


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, triton_on_the_host: None) -> Launches:
    stand_in = Launches()
    monkeypatch.setattr(fused_results, "_fused_launches", lambda: stand_in)
    monkeypatch.setattr(device_batches, "current_stream", lambda device: 0)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: "a stream")
    return stand_in


def add(batches: DeviceBatches, *values: int) -> None:
    for value in values:
        assert batches._add_fused(value, torch.full((3,), float(value), device="cpu"), torch.device("cpu"), True)


def test_values_of_a_list_are_launched_when_all_have_come(launches: Launches) -> None:
    batches = DeviceBatches(MemorySink(), ("min",))
    add(batches, 1)
    assert launches.together == []
    batches.hold()
    batches.hold()
    add(batches, 2, 3)
    batches.release()
    add(batches, 4)
    batches.tick()  # sends nothing: not all of it is launched
    assert launches.together == []
    batches.release()
    assert launches.together == [(torch.float32, 3)]
    ((_, results),) = batches._fused.values()
    found = list(results.statistics(as_array(results.together())))
    assert found == [(value, [float(value)]) for value in (1, 2, 3, 4)]


def test_values_that_cannot_be_launched_together_are_reduced_one_by_one(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("it cannot be compiled\nfor this device")

    monkeypatch.setattr(launches, "reduce_many", fail)
    sink = MemorySink()
    batches = DeviceBatches(sink, ("min",))
    add(batches, 1)
    batches.hold()
    add(batches, 2, 3)
    batches.release()
    (note,) = sink.of(NOTE)
    assert (note.code, "it cannot be compiled" in note.message) == ("triton", True)
    ((_, results),) = batches._fused.values()
    assert [value for value, *_ in results._values] == [1] and not results.waits
    (joined,) = batches._joined.values()
    assert [value for value, *_ in joined._entries] == [2, 3]
