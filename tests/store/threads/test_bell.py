"""A bell wakes who waits, and no interrupt can leave it, or anything that the writer waits for, locked."""

from __future__ import annotations

import dis
import random
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.threads.bell import Bell
from tests.checkout import ROOT
from tests.store.recording import bare_value, begin, call, noise, store, writer

PLACES = (str(ROOT / "aten_dump" / "store" / "writing"), threading.__file__)
TRIED = 80


def test_rung_before_or_meanwhile_it_wakes_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    begun = time.monotonic()
    bell.wait(60)
    threading.Timer(0.05, bell.ring).start()
    bell.wait(60)
    assert time.monotonic() - begun < 50
    bell.wait(0.01)


class Interrupt:
    """Raises KeyboardInterrupt itself where Python looks for signals the `at`-th time: nobody holds it back.

    Python looks when a call has returned, when a function begins and where a loop goes back.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PLACES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            before, now = self._last.get(frame, ""), dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._last[frame] = now
            if before.startswith("CALL") or now in ("RESUME", "JUMP_BACKWARD"):
                self.count += 1
                if self.count == self.at:
                    raise KeyboardInterrupt
        elif event == "return":
            self._last.pop(frame, None)
        return self


def record(path: Path, interrupt: Interrupt) -> int:
    """Write steps until the interrupt; close; return how often Python looked."""
    sink = writer(path, queue_bytes=1 << 16, shard_bytes=1 << 18)
    begin(sink, 0)
    sink.emit(call(1))
    sink.end_step(1, 0, {})
    begin(sink, 1)
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces them only if a frame has asked before `settrace`
    sys.settrace(interrupt)
    try:
        for number in range(1, 6):
            sink.emit(bare_value(number))
            store(sink, noise(40_000, number), "U8")
            sink.wait_for_room()
        sink.end_step(0, 5, {})
        sink.close()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    ended = threading.Thread(target=sink.close, daemon=True)
    ended.start()
    ended.join(10)
    assert not ended.is_alive(), f"the writer hangs after an interrupt at {interrupt.at}"
    return interrupt.count


def test_an_interrupt_anywhere_in_the_writer_never_makes_it_hang(tmp_path: Path) -> None:
    length = record(tmp_path / "whole", Interrupt(-1))
    assert length > TRIED  # how many more, the writer's own pace decides
    chance = random.Random(7)
    for at in sorted(chance.sample(range(1, length + 1), TRIED)):
        path = tmp_path / str(at)
        record(path, Interrupt(at))
        assert read_index(path / "step0" / "rank0").committed and verify(path / "step0" / "rank0") == []
        later = path / "step1" / "rank0"
        if later.exists():
            assert read_index(later) is not None


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_wait_ends_by_itself(seconds: float) -> None:
    Bell().wait(seconds)
