"""Ctrl-C at any moment of a recording: nothing hangs, nothing is lost, and the process is left as it was.

Three cases in four do at a chosen instruction of ours, on the program's thread, what Python does when a signal has
come: the handler that is installed is called with the frame. So every place can be had, those too that a real signal
meets once in a million times. The fourth is a real SIGINT at a random time.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist

from aten_dump import DumpConfig, DumpMode, open_dump, stop_all
from aten_dump.store.checking.verification import verify
from tests.capture import process_state
from tests.checkout import ROOT

_OURS: Final = (str(ROOT / "aten_dump" / "capture"), str(ROOT / "aten_dump" / "store"))


class Interrupt:
    """Calls the handler of SIGINT at the `at`-th instruction of ours in a block, on this thread."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.where = ""

    def __enter__(self) -> Interrupt:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces them only if a frame has asked before `settrace`
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                code = frame.f_code
                self.where = f"{getattr(code, 'co_qualname', code.co_name)}:{frame.f_lineno}"  # of Python 3.11
                handler = signal.getsignal(signal.SIGINT)
                assert callable(handler)
                handler(signal.SIGINT, frame)
        return self._instruction


class RealInterrupt:
    """Sends this process a SIGINT after some seconds, if a block takes so long; it may be raised anywhere in it."""

    def __init__(self, seconds: float) -> None:
        self.at = seconds
        self.where = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> RealInterrupt:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        if not self._over.wait(self.at):
            self.where = "a real signal"
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


# -- programs; each returns when it is over, or raises KeyboardInterrupt


def _train(path: Path, **config: Any) -> DumpMode:
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.ReLU(), torch.nn.Linear(40, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path=str(path), **config), model=model) as dump:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4096, 40)).sum().backward()
            optimizer.step()
            dump.step()
    return dump


def _full(path: Path) -> None:
    _train(path, data="full", queue_bytes=1 << 20)


def _hashes(path: Path) -> None:
    _train(path, data="hash", level="aten", stacks=False)


def _trigger(path: Path) -> None:
    with DumpMode(DumpConfig(path=str(path), data="full", trigger="nonfinite")) as dump:
        x = torch.ones(8)
        for divisor in (1.0, 0.0):
            (x / divisor).sum()
            dump.step()


def _by_hand(path: Path) -> None:
    dump = DumpMode(DumpConfig(path=str(path), data="statistic"))
    dump.start()
    try:
        x = torch.ones(8)
        x.exp()
        dump.pause()
        x.sin()
        dump.resume()
        x.log()
        dump.step()
        x.add(1)
    finally:
        dump.close()


def _collective(path: Path) -> None:
    with DumpMode(DumpConfig(path=str(path), data="full")) as dump:
        x = torch.ones(100, device="cpu")  # gloo knows no other
        work = dist.all_reduce(x, async_op=True)
        x.shape
        assert work is not None
        work.wait()
        (x * 2).sum()
        dump.step()


PROGRAMS: Final[dict[str, Callable[[Path], None]]] = {
    "full": _full,
    "hashes": _hashes,
    "trigger": _trigger,
    "by hand": _by_hand,
    "collective": _collective,
}
_lengths: Final[dict[str, tuple[int, float]]] = {}  # of each program


def length_of(name: str, folder: Path) -> tuple[int, float]:
    """Return how many instructions of ours a program runs, and how many seconds."""
    if name not in _lengths:
        PROGRAMS[name](folder)  # the first time, more is run
        shutil.rmtree(folder)
        begun = time.perf_counter()
        PROGRAMS[name](folder)
        seconds = time.perf_counter() - begun
        shutil.rmtree(folder)
        with Interrupt(-1) as count:
            PROGRAMS[name](folder)
        shutil.rmtree(folder)
        _lengths[name] = count.count, seconds
    return _lengths[name]


def interrupt_one(folder: Path, chance: random.Random) -> str:
    """Interrupt a program somewhere; return where.

    Raises:
        AssertionError: something is not as it was, or not as it should be.
    """
    name = chance.choice(list(PROGRAMS))
    with _one_rank(folder, name == "collective"):
        length, seconds = length_of(name, folder / "counted")
        before = process_state.picture()
        is_real = chance.random() < 0.25
        interrupt = RealInterrupt(chance.random() * seconds) if is_real else Interrupt(chance.randint(1, length))
        seen = False
        try:
            with interrupt:
                PROGRAMS[name](folder / "dump")
            time.sleep(0.01 * is_real)  # where a signal that was sent last arrives
        except KeyboardInterrupt:
            seen = True
        if is_real:
            stop_all()  # the program is interrupted between what it does as well: before the block it has entered
        where = f"{name} at {interrupt.at} of {length}, {interrupt.where}"
        assert seen or not interrupt.where, f"{where}: the program was not interrupted"
        changed = process_state.changes(before, process_state.picture())
        assert changed == [], f"{where}: {changed}"
        assert DumpMode.current() is None, where
        _check(folder / "dump", where)
        _records_again(folder / "again")
    return where


def _check(path: Path, where: str) -> None:
    """See that all that was recorded is on file and right."""
    for directory in sorted(path.glob("step*/rank0")):
        assert verify(directory) == [], f"{where}: {directory.parent.name}"
        rank = open_dump(path).step(int(directory.parent.name[4:])).rank(0)
        assert rank.missing == [], f"{where}: {rank.missing}"
        for value in rank.values:
            if value.has_data:
                value.tensor()


def _records_again(path: Path) -> None:
    with DumpMode(DumpConfig(path=str(path), data="full")):
        torch.ones(3).add(1)
    assert open_dump(path).step(0).rank(0).tensor("Aten.add.0.forward.output.0").tolist() == [2.0] * 3


class _one_rank:
    """A process group of this process alone, where one is wanted."""

    def __init__(self, folder: Path, is_wanted: bool) -> None:
        self._is_wanted = is_wanted

    def __enter__(self) -> None:
        if self._is_wanted:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def __exit__(self, *error: object) -> None:
        if self._is_wanted:
            dist.destroy_process_group()
