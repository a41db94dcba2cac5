"""Ctrl-C while the recorder's own code runs waits until that is done; anywhere else it comes at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump, stop_all
from aten_dump.capture import IS_COMPILED, interrupts
from tests.checkout import ROOT
from tests.devices import script_here
from tests.sampling import slow_but_for
from tests.torture.failing import library
from tests.torture.interrupting import Interrupt, interrupt_one


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    stop_all()
    interrupts.held.clear()
    signal.signal(signal.SIGINT, before)


def test_interrupts_at_instructions_of_ours_leave_nothing_behind(tmp_path: Path) -> None:
    """A seeded sample; `make torture` runs thousands."""
    for number in range(4):
        interrupt_one(tmp_path / str(number), random.Random(f"sample {number}"))


@pytest.mark.skipif(IS_COMPILED, reason="compiled code has no instructions of Python's to interrupt it at")
def test_an_op_that_is_interrupted_is_recorded_whole(tmp_path: Path) -> None:
    def program() -> None:
        with DumpMode(DumpConfig(path=tmp_path / "dump", data="full")):
            x = torch.ones(3) + 1
            with Interrupt(300):
                x.exp()
            x.sin()

    with pytest.raises(KeyboardInterrupt):
        program()
    names = [call.name for call in open_dump(tmp_path / "dump").step(0).rank(0).calls]
    assert "Aten.exp.0.forward" in names and "Aten.sin.0.forward" not in names


def test_in_the_program_it_comes_at_once(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            signal.raise_signal(signal.SIGINT)
            return x.exp()

    model = Model()
    with pytest.raises(KeyboardInterrupt), DumpMode(DumpConfig(path=tmp_path / "dump"), model=model):
        model(torch.ones(2))
    calls = open_dump(tmp_path / "dump").step(0).rank(0).calls
    assert [call.error for call in calls if call.kind == "module"] == ["KeyboardInterrupt: "]
    assert not any(call.name == "Aten.exp.0.forward" for call in calls)


def _in_our_code(held: interrupts.HeldSignals, action: Callable[[], None]) -> None:
    """Run something in a frame that looks like one of the recorder's."""
    code = compile("action()", interrupts.__file__, "exec")
    held.install()
    try:
        exec(code, {"action": action})
    finally:
        held.remove()


def test_a_handler_of_the_program_is_called_once_and_put_back() -> None:
    calls: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        calls.append(number)

    signal.signal(signal.SIGINT, handler)

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert calls == []

    _in_our_code(interrupts.HeldSignals(lambda: False), twice)
    assert signal.getsignal(signal.SIGINT) is handler
    interrupts.deliver()
    interrupts.deliver()
    assert calls == [signal.SIGINT]


def test_who_insists_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_SECONDS", 0.0)

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        _in_our_code(interrupts.HeldSignals(lambda: False), twice)


def test_compiled_code_has_no_frames_but_says_that_it_is_busy() -> None:
    busy = interrupts.HeldSignals(lambda: True)
    busy.install()
    signal.raise_signal(signal.SIGINT)
    busy.remove()
    with pytest.raises(KeyboardInterrupt):
        interrupts.deliver()


def test_a_handler_that_the_program_has_set_meanwhile_stays(tmp_path: Path) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        pass

    with DumpMode(DumpConfig(path=tmp_path / "dump")):
        ours = signal.signal(signal.SIGINT, handler)
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, ours)  # as a framework does that puts back what it found
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_only_the_main_thread_is_interrupted() -> None:
    interrupts.held[int(signal.SIGINT)] = signal.default_int_handler, 0.0
    raised: list[BaseException] = []

    def deliver() -> None:
        try:
            interrupts.deliver()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    thread.join()
    assert raised == [] and interrupts.held


PROGRAM = """
import sys, torch
from aten_dump import DumpConfig, DumpMode
model = torch.nn.Linear(64, 64)
try:
    with DumpMode(DumpConfig(path=sys.argv[1], data="full", queue_bytes=1 << 20), model=model) as dump:
        print("recording", flush=True)
        while True:
            model(torch.ones(4096, 64)).sum().backward()
            dump.step()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("seconds", slow_but_for([0.2], [0.0, 0.05, 0.2]))
def test_a_program_that_gets_a_real_signal_ends_with_its_dump_complete(tmp_path: Path, seconds: float) -> None:
    command = [sys.executable, "-c", script_here(PROGRAM), str(tmp_path / "dump")]
    child: subprocess.Popen[Any] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None and "recording\n" in iter(child.stdout.readline, "")
    threading.Event().wait(seconds)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "interrupted\n"
    assert child.returncode == 0
    dump = open_dump(tmp_path / "dump")
    assert all(rank.missing == [] for rank in dump.all_ranks())


HANGS = """
import ctypes, os, signal, sys, threading, time, torch
from aten_dump import DumpConfig, DumpMode
from aten_dump.store.threads import bounded_thread
library = ctypes.CDLL(os.environ["LD_PRELOAD"])

def tell():
    main, seen = threading.main_thread().ident, 0
    while seen < 4:
        time.sleep(0.05)
        frame, seen = sys._current_frames()[main], seen + 1
        while frame is not None and "/store/" not in frame.f_code.co_filename:
            frame = frame.f_back
        seen = seen if frame is not None else 0
    print("waits", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=tell, daemon=True).start()
x = torch.ones(1 << 18)
try:
    with DumpMode(DumpConfig(path=sys.argv[1], data="tensor", queue_bytes=1 << 22)) as dump:
        library.fail_calls(b"write", sys.argv[1].encode(), 1, -1, -1)  # all writes hang
        if sys.argv[2] == "program":
            x + 1
            raise_signal = signal.raise_signal
            raise_signal(signal.SIGINT)
        while True:
            x = x + 1
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="no C compiler here: neither cc nor gcc is on the path")
@pytest.mark.parametrize("first", ["in the recorder", "program"])
def test_ctrl_c_twice_ends_a_program_whose_disk_hangs(tmp_path: Path, first: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(library()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HANGS, str(tmp_path / "dump"), first]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    )
    assert child.stdout is not None and "waits\n" in iter(child.stdout.readline, "")
    if first != "program":
        child.send_signal(signal.SIGINT)
    threading.Event().wait(1.5)
    child.send_signal(signal.SIGINT)
    try:
        said, _ = child.communicate(timeout=30)  # else it takes ten minutes
    finally:
        child.kill()
    assert child.returncode == 0 and "interrupted" in said, said
    assert "records and their bytes are left" in said, "what is not written is told"
