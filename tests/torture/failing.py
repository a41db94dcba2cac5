"""A small recording in which chosen calls of the system fail: `on_error` tells of it, or nothing is lost.

The library `failing_calls.c` stands between the program and the system. A process that has it and has imported torch
forks for each case: the child records (or recovers what was recorded), and this process looks at what it said and at the
dump that it left: complete where nothing was said, else as much as is there, which `recover` completes.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from aten_dump import open_dump
from aten_dump.errors import AtenDumpError
from aten_dump.store.checking.verification import verify
from aten_dump.store.recovery import recover
from tests.checkout import ROOT

KILLED: Final = ROOT / "tests" / "golden" / "v1" / "killed"
SOURCE: Final = Path(__file__).with_name("failing_calls.c")
FUNCTIONS: Final = ("write", "fsync", "close", "rename", "mkdir", "open", "ftruncate", "unlink")
SHORT_WRITE: Final = 0
HANGS: Final = -1
ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
COUNTS: Final = (1, 2, -1)
NEVER: Final = 1 << 30
_CHILD_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Case:
    """Which calls fail, and how; see `failing_calls.c`."""

    program: str
    function: str = ""
    first: int = NEVER
    count: int = 1
    error: int = errno.EIO
    on_error: str = "warn"


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a program."""

    seen: dict[str, int]  # calls of each function
    results: list[float]  # of what it computed
    raised: str  # the error of aten_dump that came out of it
    warned: list[str]
    broken: str  # a traceback of any other error

    @property
    def told(self) -> bool:
        """Whether the user was told that something is missing."""
        return bool(self.raised or self.warned)


# -- programs, which run in a process of their own


def _steps(path: str, on_error: str, **config: Any) -> list[float]:
    """Train for three steps."""
    import torch

    from aten_dump import DumpConfig, DumpMode

    torch.manual_seed(0)
    weight = torch.ones(40, 40, requires_grad=True)
    results = []
    with DumpMode(DumpConfig(path=path, on_error=on_error, **config)) as dump:  # type: ignore[arg-type]
        for number in range(3):
            loss = (weight * (number + 1)).exp().log().sum()
            if "durability" in config:
                dump.flush()
            loss.backward()
            results.append(loss.item())
            dump.step()
    return results


def _short(path: str, on_error: str) -> list[float]:
    return _steps(path, on_error, data="tensor")


def _on_disk(path: str, on_error: str) -> list[float]:
    return _steps(path, on_error, data="full", durability="fsync")


def _many_shards(path: str, on_error: str) -> list[float]:
    return _steps(path, on_error, data="tensor", durability="step", shard_bytes=1 << 16)


def _trigger(path: str, on_error: str) -> list[float]:
    import torch

    from aten_dump import DumpConfig, DumpMode

    results = []
    config = DumpConfig(path=path, on_error=on_error, data="full", trigger="nonfinite")  # type: ignore[arg-type]
    with DumpMode(config) as dump:
        for divisor in (1.0, 0.0, 2.0):
            results.append((torch.ones(8) / divisor).exp().sum().item())
            dump.step()
    return [number if number < 1e30 else -1.0 for number in results]


def _recover(path: str, on_error: str) -> list[float]:
    """Complete a dump that was cut short."""
    from aten_dump.store.recovery import recover

    for folder in sorted(Path(path).glob("step*/rank*")):
        recover(folder)
    return []


PROGRAMS: Final[dict[str, Callable[[str, str], list[float]]]] = {
    "short": _short, "on disk": _on_disk, "many shards": _many_shards, "trigger": _trigger, "recover": _recover,
}  # fmt: skip
RECORDINGS: Final = tuple(name for name in PROGRAMS if name != "recover")


# -- the process with the library, and its children


def _serve() -> None:
    """Run cases that come on stdin, each in a child; print what came of them."""
    import torch

    from aten_dump import DumpConfig, DumpMode  # noqa: F401 - imported once, for all children

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # what they import and torch begins, before children are forked
        for name in RECORDINGS:
            PROGRAMS[name](os.path.join(folder, name), "raise")
    for line in sys.stdin:
        path, case = json.loads(line)
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.close(reads)
            os.write(writes, json.dumps(asdict(_run(path, Case(**case)))).encode())
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as file:
            said = file.read()
        os.waitpid(child, 0)
        print(said, flush=True)


def _run(path: str, case: Case) -> Said:
    signal.alarm(_CHILD_SECONDS)
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    raised = broken = ""
    results: list[float] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.fail_calls(case.function.encode(), path.encode(), case.first, case.count, case.error)
        try:
            results = PROGRAMS[case.program](path, case.on_error)
        except AtenDumpError as error:
            raised = f"{type(error).__name__}: {error}"
        except BaseException:
            broken = traceback.format_exc()
        seen = {name: library.calls_seen(name.encode()) for name in FUNCTIONS}
        library.fail_calls(b"", b"", NEVER, 0, 0)
    return Said(seen, results, raised, [str(one.message) for one in caught], broken)


@cache
def library() -> Path | None:
    """Return the library, compiled; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    folder = Path(tempfile.mkdtemp(prefix="failing_calls"))
    atexit.register(shutil.rmtree, folder)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", folder / "failing_calls.so", SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return folder / "failing_calls.so"


class _Server:
    """The process that has the library; it ends with this one."""

    def __init__(self) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(library()), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", __name__]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT)
        assert process.stdin is not None and process.stdout is not None
        self._given, self._said = process.stdin, process.stdout
        atexit.register(process.communicate)

    def run(self, path: Path, case: Case) -> Said:
        print(json.dumps([os.path.realpath(path), asdict(case)]), file=self._given, flush=True)
        line = self._said.readline().strip()
        assert line, f"{case}: the program did not come to its end"
        return Said(**json.loads(line))


_server = cache(_Server)


# -- cases, and what is right of each


@cache
def every_case() -> list[Case]:
    """Return a case for each call that a program makes, each error, and each count of calls that fail; shuffled."""
    found = []
    for program in PROGRAMS:
        for function, seen in _undisturbed(program)[2].items():
            errors = (*ERRORS, SHORT_WRITE) if function == "write" else ERRORS
            for first, error, count in itertools.product(range(1, seen + 1), errors, COUNTS):
                on_error = ("warn", "raise")[len(found) % 2]
                found.append(Case(program, function, first, count, error, on_error))
    random.Random(0).shuffle(found)
    return found


@cache
def _undisturbed(program: str) -> tuple[list[float], dict[tuple[int, int], int], dict[str, int]]:
    """Return the results of a program, how many calls are in each step and rank of its dump, and how many of each
    function it made.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        _prepare(program, path)
        said = _server().run(path, Case(program))
        assert not said.told and not said.broken, said
        return said.results, _calls(path), said.seen


def _prepare(program: str, path: Path) -> None:
    if program == "recover":
        copy_of_killed(path)


def copy_of_killed(path: Path) -> None:
    """Make a dump that was cut short, with shards whose headers have no room on the disk yet."""
    subprocess.run(["cp", "-R", "--sparse=always", KILLED, path], check=True)


def _calls(path: Path) -> dict[tuple[int, int], int]:
    dump = open_dump(path)
    assert dump.problems == [] and dump.run
    return {(rank.step, rank.rank): len(rank.calls) for rank in dump.all_ranks()}


def fail_one(path: Path, case: Case) -> bool:
    """Run a case; return whether the user was told.

    Raises:
        AssertionError: something is lost in silence, the program is disturbed, or what is left is no dump.
    """
    _prepare(case.program, path)
    results, calls, _ = _undisturbed(case.program)
    said = _server().run(path, case)
    assert not said.broken, f"{case}: {said.broken}"
    if case.on_error == "warn" and case.program in RECORDINGS:
        assert said.results == results and not said.raised, f"{case}: the program was disturbed: {said}"
    if said.told:
        for folder in sorted(path.glob("step*/rank*")):
            if (folder / "index.msgpack").exists():
                recover(folder)
                assert verify(folder) == [], f"{case}: {verify(folder)}"
    else:
        assert _calls(path) == calls, f"{case}: lost in silence"
        assert [problem for rank in path.glob("step*/rank*") for problem in verify(rank)] == [], case
    return said.told


if __name__ == "__main__":
    _serve()
