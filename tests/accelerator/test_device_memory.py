"""What recording takes of a device's memory, and what happens where there is none left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data import byte_copies, device_batches, device_copies
from aten_dump.capture.data.statistics import on_device
from aten_dump.capture.trigger.measured import extremes
from tests import devices

MIB = 1 << 20
MOST = 64 * MIB
DEVICE: Any = torch.get_device_module(devices.kind())


def recorded(path: Path, body: Callable[[], object], **config: Any) -> Any:
    with DumpMode(DumpConfig(path=path, **{"data": "full", "level": "aten", "stacks": False, **config})) as dump:
        body()
        dump.step()
    return open_dump(path).step(0).rank(0)


def peak_of(body: Callable[[], object]) -> int:
    """Return how many bytes were in use at most, beyond those before: also what was freed and a copy still reads."""
    DEVICE.synchronize()
    DEVICE.empty_cache()
    DEVICE.reset_peak_memory_stats()
    allocated, active = DEVICE.memory_allocated(), DEVICE.memory_stats()["active_bytes.all.current"]
    body()
    peak = DEVICE.memory_stats()["active_bytes.all.peak"] - active
    return max(int(DEVICE.max_memory_allocated() - allocated), int(peak))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(*shape, dtype=dtype, device=devices.kind())


KINDS: dict[str, Callable[[], Tensor]] = {  # of 8 MiB or more
    "dense": lambda: ones(2048, 1024),
    "widened for its statistics": lambda: ones(2048, 2048, dtype=torch.bfloat16),
    "every second column": lambda: ones(2048, 2048)[:, ::2],
    "every fourth column": lambda: ones(2048, 4096)[:, ::4],
    "every third integer": lambda: ones(2048, 1536, dtype=torch.int64)[:, ::3],
    "every second bool": lambda: ones(4096, 4096, dtype=torch.bool)[:, ::2],
    "transposed": lambda: ones(2048, 1024).t(),
    "channels last": lambda: ones(8, 64, 64, 64).permute(0, 3, 1, 2),
    "expanded": lambda: ones(2048, 1).expand(2048, 1024),
    "complex": lambda: ones(2048, 512, dtype=torch.complex64),
    "conjugate": lambda: ones(2048, 512, dtype=torch.complex64).conj(),
    "negative": lambda: ones(4096, 512, dtype=torch.complex64).conj().imag,
    "zeros without memory": lambda: torch._efficientzerotensor((2048, 1024), device=devices.kind()),
}
ASKED: dict[str, dict[str, Any]] = {
    **{data: {"data": data} for data in ("structure", "hash", "statistic", "tensor", "full")},
    "sample": {"data": "tensor", "sample": 1_500_000},
    "trigger": {"data": "structure", "trigger": "nonfinite"},
}


@pytest.fixture
def limits_of_a_32nd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "STAGING_BYTES", device_copies.STAGING_BYTES // 32)
    monkeypatch.setattr(byte_copies, "GATHERED_BYTES", byte_copies.GATHERED_BYTES // 32)
    monkeypatch.setattr(device_batches, "BATCH_BYTES", device_batches.BATCH_BYTES // 32)
    monkeypatch.setattr(extremes, "MOST_ELEMENTS", on_device.MOST_ELEMENTS // 32)
    monkeypatch.setattr(on_device, "MOST_ELEMENTS", on_device.MOST_ELEMENTS // 32)


@pytest.mark.usefixtures("limits_of_a_32nd")
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_recording_takes_does_not_grow_with_the_tensors(tmp_path: Path, kind: str, asked: str) -> None:
    """No op here takes memory of its own, so all is the recorder's: less than a 32nd of what it may take in all."""
    x = KINDS[kind]()
    config = {"data": "full", "level": "aten", "stacks": False, **ASKED[asked]}

    def body() -> None:
        with DumpMode(DumpConfig(path=tmp_path / "dump", **config)) as dump:
            torch.ops.aten.alias(x)
            dump.step()

    assert peak_of(lambda: torch.ops.aten.alias(x)) == 0
    taken = peak_of(body)
    assert taken <= MOST // 32
    if config.get("trigger") is None:
        rank = open_dump(tmp_path / "dump").step(0).rank(0)
        assert [note.message for note in rank.notes if note.code in ("unreadable", "device_memory")] == []


@pytest.mark.usefixtures("limits_of_a_32nd")
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_over_in_pieces_is_whole(tmp_path: Path, kind: str) -> None:
    x = KINDS[kind]()
    if not x._is_zerotensor():
        numbers = torch.arange(x.untyped_storage().nbytes() // x.element_size())
        torch.empty(0, dtype=x.dtype, device=devices.kind()).set_(x.untyped_storage()).copy_(numbers)
    rank = recorded(tmp_path / "dump", lambda: torch.ops.aten.alias(x), data="full")
    value = rank["Aten.alias.0.forward"].inputs[0][0]
    expected = torch.zeros(x.shape) if x._is_zerotensor() else x.cpu()
    elements = expected.contiguous().resolve_conj().resolve_neg()
    assert torch.equal(value.tensor(), expected)
    assert value.hash == xxhash.xxh3_64_hexdigest(elements.view(-1).view(torch.uint8).numpy().tobytes())
    assert value.stats.count == x.numel()
    assert value.stats.l2norm == pytest.approx(torch.linalg.vector_norm(elements.to(torch.complex128)).item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["every second column", "transposed"])
def test_the_limits_as_they_are(tmp_path: Path, kind: str) -> None:
    x = torch.cat([KINDS[kind]()] * 16).as_strided((16 * 1024, 1024), (2048, 2))  # 64 MiB, every second element
    taken = peak_of(lambda: recorded(tmp_path / "dump", lambda: torch.ops.aten.alias(x), data="full"))
    assert 0 < taken <= MOST


def test_results_of_a_batch_are_sent_before_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long tensor has results for each piece, which wait on the device."""
    monkeypatch.setattr(on_device, "MOST_ELEMENTS", 1 << 14)
    monkeypatch.setattr(device_batches, "BATCH_BYTES", MIB // 4)
    monkeypatch.setattr(device_batches.DeviceBatches, "tick", lambda self: None)
    x = ones(1 << 20)

    def body() -> None:
        for _ in range(64):
            x.mul_(1)

    taken = peak_of(lambda: recorded(tmp_path / "dump", body, data="statistic"))
    assert taken <= 2 * MIB


@contextmanager
def no_memory_left() -> Iterator[None]:
    """Let the device give out nothing more, not from what the allocator has in store either."""
    DEVICE.synchronize()
    DEVICE.empty_cache()
    with devices.no_memory_given():
        taken: list[torch.Tensor] = []
        for nbytes in (MIB, 4096, 512):
            with suppress(torch.OutOfMemoryError):
                while True:
                    taken.append(torch.empty(nbytes, dtype=torch.uint8, device=devices.kind()))
        try:
            yield
        finally:
            taken.clear()


def test_data_are_kept_by_way_of_the_host(tmp_path: Path) -> None:
    """The program writes in place and allocates nothing, so that it needs no memory itself."""
    x = torch.arange(1_000_000.0, device=devices.kind())
    y = torch.arange(24.0, device=devices.kind()).reshape(4, 6)[:, ::2]
    kept = [x.cpu(), y.cpu()]

    def body() -> None:
        x.add_(1)
        y.mul_(2)

    with no_memory_left():
        rank = recorded(tmp_path / "dump", body)
    assert [note.message for note in rank.notes if note.code == "device_memory"] == [
        f"{devices.kind(0)} has no memory left for what the recorder computes there: some data was copied to the host first, and the "
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
    x = torch.zeros(1000, device=devices.kind())

    with no_memory_left():
        rank = recorded(tmp_path / "dump", lambda: x.reciprocal_(), data="structure", trigger="nonfinite")
    assert any("aten::reciprocal_ made Inf" in note.message for note in rank.notes), rank.notes
