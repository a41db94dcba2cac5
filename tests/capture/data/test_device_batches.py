"""Reduced values are joined for one copy and told apart again; who is reduced on a device. On a device: tests/npu."""

from __future__ import annotations

import math

import pytest
import torch

from aten_dump.capture.data import device_batches
from aten_dump.capture.data.device_batches import DeviceBatches, join
from aten_dump.capture.data.host_memory import as_array
from aten_dump.capture.data.statistics.on_device import Reduced, finish
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.config import STATISTICS
from aten_dump.store.memory_sink import MemorySink
from aten_dump.store.records import NOTE
from tests.devices import here


def separated(
    entries: list[tuple[int, list[int], Reduced]],
) -> list[tuple[int, list[int], dict[str, list[float]]]]:
    together, separate = join(entries)
    assert together.dtype == torch.uint8
    return [
        (value, rows, {k: a.tolist() for k, a in found.items()})
        for value, rows, found in separate(as_array(together.cpu()))
    ]


def test_results_of_several_dtypes_come_back_each_to_its_value() -> None:
    """An odd number of float32 comes before the others: cut without care, 8-byte numbers would not be aligned."""
    entries = [
        (7, [3], {"low": torch.tensor(1.5), "nan": torch.tensor(2)}),
        (9, [5], {"sum": torch.tensor([0.25, 0.5], dtype=torch.float64), "low": torch.tensor(-1.5)}),
        (
            8,
            [1],
            {"low": torch.tensor([[3.5]]), "nan": torch.tensor(-1), "sum": torch.tensor(4.0, dtype=torch.float64)},
        ),
    ]
    assert separated(entries) == [
        (7, [3], {"low": [1.5], "nan": [2]}),
        (9, [5], {"sum": [0.25, 0.5], "low": [-1.5]}),
        (8, [1], {"low": [3.5], "nan": [-1], "sum": [4.0]}),
    ]


def test_results_of_one_dtype() -> None:
    assert separated([(1, [2], {"low": torch.tensor(2.0)}), (2, [2], {"low": torch.tensor(3.0)})]) == [
        (1, [2], {"low": [2.0]}),
        (2, [2], {"low": [3.0]}),
    ]


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
    assert not batches.add(1, tensor)
    batches.flush()
    batches.tick()
    assert sink.records == []


@pytest.fixture
def triton_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if kernels could be had for the CPU: Triton fails there, as it may on a device with a broken compiler."""
    monkeypatch.setattr(device_batches, "has_triton", lambda kind: True)
    monkeypatch.setattr(device_batches, "_triton_failed", set())


@pytest.mark.usefixtures("triton_on_the_host")
def test_where_triton_fails_the_dump_says_so_once_and_it_is_not_tried_again() -> None:
    sink = MemorySink()
    batches = DeviceBatches(sink, ("min",))
    assert batches._fused(torch.ones(3)) is None
    assert batches._fused(torch.ones(3)) is None
    (note,) = sink.of(NOTE)
    assert (note.code, note.count) == ("triton", 1)
    assert note.message.startswith(f"no Triton for {here().type}, statistics take several passes: ")
    assert "\n" not in note.message
