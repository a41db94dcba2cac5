"""What recording takes of a device's memory, and what happens where there is none left. Run with `make test-npu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data import device_batches, device_copies
from aten_dump.capture.data.statistics import on_device
from tests.npu.simulator import device

MIB = 1 << 20
MOST = 64 * MIB
NPU: Any = torch.get_device_module("npu")


def recorded(path: Path, body: Callable[[], object], **config: Any) -> Any:
    with DumpMode(DumpConfig(path=path, **{"data": "full", "level": "aten", "stacks": False, **config})) as dump:
        body()
        dump.step()
    return open_dump(path).step(0).rank(0)


def peak_of(body: Callable[[], object]) -> int:
    """Return how many bytes were in use at most, beyond those before."""
    NPU.synchronize()
    NPU.reset_peak_memory_stats()
    before = NPU.memory_allocated()
    body()
    return int(NPU.max_memory_allocated() - before)


@pytest.mark.parametrize("data", ["statistic", "full"])
def test_what_recording_takes_does_not_grow_with_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    """Tensors of 8 MiB, dense and with gaps, in a dtype that is widened for its statistics, with limits to match."""
    assert device_copies.STAGING_BYTES + 13 * on_device.MOST_ELEMENTS <= MOST
    monkeypatch.setattr(device_copies, "STAGING_BYTES", MIB // 2)
    monkeypatch.setattr(device_batches, "MOST_ELEMENTS", MIB // 32)
    x = torch.ones(2048, 2048, dtype=torch.bfloat16, device="npu")
    gaps = torch.ones(1024, 2048, device="npu")[:, ::2]

    def body() -> None:
        x.mul_(0.5)
        gaps.add_(1)

    bare = peak_of(body)
    taken = peak_of(lambda: recorded(tmp_path / "dump", body, data=data)) - bare
    in_a_row = gaps.nbytes if data == "full" else 0  # the hash is of elements without gaps between them
    assert 0 < taken <= 2 * MIB + in_a_row


@contextmanager
def no_memory_left() -> Iterator[None]:
    """Let the device give out nothing more, not from what the allocator has in store either."""
    NPU.synchronize()
    NPU.empty_cache()
    device.limit_memory(0, 1)
    taken: list[torch.Tensor] = []
    for nbytes in (MIB, 4096, 512):
        with suppress(torch.OutOfMemoryError):
            while True:
                taken.append(torch.empty(nbytes, dtype=torch.uint8, device="npu"))
    try:
        yield
    finally:
        device.limit_memory(0, 0)
        taken.clear()


def test_data_are_kept_by_way_of_the_host(tmp_path: Path) -> None:
    """The program writes in place and allocates nothing, so that it needs no memory itself."""
    x = torch.arange(1_000_000.0, device="npu")
    y = torch.arange(24.0, device="npu").reshape(4, 6)[:, ::2]
    kept = [x.cpu(), y.cpu()]

    def body() -> None:
        x.add_(1)
        y.mul_(2)

    with no_memory_left():
        rank = recorded(tmp_path / "dump", body)
    assert [note.message for note in rank.notes if note.code == "device_memory"] == [
        "npu:0 has no memory left for what the recorder computes there: some data was copied to the host first, and the "
        "program waited for it"
    ]
    assert [note for note in rank.notes if note.code == "unreadable"] == []
    for name, tensor, change in (("add_", kept[0], 1), ("mul_", kept[1], 2)):
        call = rank[f"Aten.{name}.0.forward"]
        assert torch.equal(call.inputs[0][0].tensor(), tensor)
        expected = tensor + change if name == "add_" else tensor * change
        assert torch.equal(call.outputs.tensor(), expected)
        assert call.outputs.stats.max == expected.max() and call.outputs.stats.count == expected.numel()
        assert call.outputs.hash is not None
    copier = device_copies.copier_of(x.device)
    assert copier is not None and copier._staged_bytes == 0


def test_the_trigger_sees_nonfinite_numbers_then_too(tmp_path: Path) -> None:
    x = torch.zeros(1000, device="npu")

    with no_memory_left():
        rank = recorded(tmp_path / "dump", lambda: x.reciprocal_(), data="structure", trigger="nonfinite")
    assert any("aten::reciprocal_ made Inf" in note.message for note in rank.notes), rank.notes
