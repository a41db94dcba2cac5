"""The recorder waits where it must: each wait of the copies to the host is taken out in turn.

On a device whose streams run later and whose memory is poisoned, or used again, what is recorded must then be wrong.
"""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.data import device_copies
from tests import devices

COUNT = 4096


def copy_without(line: str) -> Callable[..., Any]:
    """Return `Copier.copy` with one line less."""
    source = inspect.getsource(device_copies)
    assert source.count(line) == 1, line
    module = types.ModuleType("device_copies_with_a_fault")
    module.__package__ = device_copies.__package__
    exec(compile(source.replace(line, "pass"), "device_copies.py", "exec"), vars(module))
    copy: Callable[..., Any] = module.Copier.copy
    return copy


def copies_stream() -> Any:
    copier = device_copies.copier_of(torch.device(devices.kind(), 0))
    assert copier is not None
    return copier._stream


@contextmanager
def held_a_while(stream: Any) -> Iterator[None]:
    """Stop a stream for so long that the writer's thread gets to what waits for it."""
    with devices.held(stream):
        yield
        time.sleep(0.5)


def the_program_s_stream_is_late(x: torch.Tensor) -> torch.Tensor:
    with held_a_while(torch.accelerator.current_stream()):
        return x.neg()


def the_copies_stream_is_late(x: torch.Tensor) -> torch.Tensor:
    with held_a_while(copies_stream()):
        return x.neg()


def the_program_writes_in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    with held_a_while(copies_stream()):
        torch.neg(x, out=y)
        y.fill_(7)
    return y


def memory_is_used_again(x: torch.Tensor) -> torch.Tensor:
    with held_a_while(copies_stream()):
        y = x.neg()
        again = [torch.full_like(x, 9) for _ in range(8)]
    return y + 0 * again[0]


def have_all_ready(folder: Path) -> None:
    """Load the programs' kernels and pin memory: while a GPU does either, it waits for all of its streams."""
    x = torch.zeros(COUNT, device=devices.kind())
    with DumpMode(DumpConfig(path=folder, data="tensor", level="aten", io="output")):
        torch.neg(x, out=torch.empty_like(x)).fill_(7)
        x.neg() + 0 * torch.full_like(x, 9)


WAITS = {  # the line, how the device behaves, whether copies are staged on the device
    "for the program's stream": (
        "self._stream.wait_event(current.record_event())", the_program_s_stream_is_late, True,
    ),
    "for the copy, on the writer's thread": ("done.synchronize()", the_copies_stream_is_late, True),
    "of the program's stream for the copy": ("current.wait_event(done)", the_program_writes_in_place, False),
    "of the allocator": ("source.record_stream(self._stream)", memory_is_used_again, True),
}  # fmt: skip


@pytest.mark.parametrize("taken_out", [False, True])
@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: str, taken_out: bool) -> None:
    line, program, staged = WAITS[wait]
    if not staged:
        monkeypatch.setattr(device_copies, "STAGING_BYTES", 0)
    have_all_ready(tmp_path / "before")
    if taken_out:
        monkeypatch.setattr(device_copies.Copier, "copy", copy_without(line))
        if not staged:  # the copy has its own module's constant
            monkeypatch.setitem(device_copies.Copier.copy.__globals__, "STAGING_BYTES", 0)
    # Numbers of its own: pinned memory that is used again holds those of the test before, which would look right.
    numbers = torch.arange(float(COUNT)) + COUNT * (2 * list(WAITS).index(wait) + taken_out)
    x = numbers.to(devices.kind())
    torch.accelerator.synchronize()
    # Where the writer does not wait, the stream may stand still until all is on file: however late the writer's thread is.
    stands = taken_out and line == "done.synchronize()"
    still = devices.held(copies_stream()) if stands else nullcontext()
    with still, DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor", level="aten", io="output")):
        (torch.neg if stands else program)(x)
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    (call,) = [call for call in rank.calls if call.op.startswith("aten::neg")]
    is_right = torch.equal(call.outputs.tensor(), -numbers)
    assert is_right is not taken_out
