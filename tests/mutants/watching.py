"""Runs something in a fork and watches it: what it says, and whether it has made a loop without end.

Time is the processor time of all processes of the fork's session, so that a machine busy with other things kills no
mutant. Processes that wait, all of them and too long, wait for ever.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

MOST_MEMORY_BYTES, MOST_FILE_BYTES = 6 << 30, 4 << 30
SAMPLE_SECONDS = 0.5
TICK = os.sysconf("SC_CLK_TCK")


Say = Callable[[str, str], None]


class Ending(NamedTuple):
    """How a fork ended: what it said last of each kind of news, and whether it had to be ended."""

    said: dict[str, list[str]]
    endless: bool
    status: int
    cpu_seconds: float


def in_fork(work: Callable[[Say], None], folder: Path, limit: Callable[[str], float], logs: bool = True) -> Ending:
    """Do some work in a fork, which tells news (a kind and a text) to this process.

    Args:
        work: gets the function that tells news.
        folder: what the fork mounts below is unmounted.
        limit: how many seconds may pass after a text was told, and until the next.
        logs: whether what it prints goes to a file in the folder.
    """
    news, told = os.pipe()
    child = os.fork()
    if child == 0:
        be_child(work, folder / "log" if logs else None, told)
    os.close(told)
    watch = Watch(child)
    ended = None
    while ended is None and not watch.endless(limit):
        if select.select([news], [], [], SAMPLE_SECONDS)[0] and (text := os.read(news, 1 << 20)):
            watch.hear(text)
        else:
            time.sleep(0.01)
        pid, status, used = os.wait4(child, os.WNOHANG)
        ended = status if pid else None
    end_session(child, reap=ended is None)
    while select.select([news], [], [], 0)[0] and (text := os.read(news, 1 << 20)):
        watch.hear(text)
    os.close(news)
    unmount_below(folder)
    cpu_seconds = watch.cpu if ended is None else used.ru_utime + used.ru_stime
    return Ending(watch.said, ended is None, ended or 0, round(cpu_seconds, 2))


def be_child(work: Callable[[Say], None], log: Path | None, told: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
        if log is not None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 1)
            os.dup2(1, 2)
        work(lambda kind, text: void(os.write(told, f"{kind}\t{text}\n".encode())))
        code = 0
    finally:
        os._exit(code)


def void(_: object) -> None: ...


class Watch:
    """What is known of a fork: its news, and the time it used since the last of them."""

    def __init__(self, child: int) -> None:
        self.child, self.said, self.rest = child, dict[str, list[str]](), b""
        self.last, self.cpu, self.since, self.idle, self.sampled = "", 0.0, 0.0, 0.0, time.monotonic()

    def hear(self, text: bytes) -> None:
        *lines, self.rest = (self.rest + text).split(b"\n")
        for line in lines:
            kind, _, self.last = line.decode().partition("\t")
            self.said.setdefault(kind, []).append(self.last)
        if lines:
            self.since, self.idle = self.cpu, 0.0

    def endless(self, limit: Callable[[str], float]) -> bool:
        passed = time.monotonic() - self.sampled
        if passed < SAMPLE_SECONDS:
            return False
        self.sampled += passed
        cpu, runs = usage(self.child)
        self.idle += 0 if runs or cpu > self.cpu else passed
        self.cpu = max(self.cpu, cpu)
        return max(self.cpu - self.since, self.idle) > limit(self.last)


def usage(session: int) -> tuple[float, bool]:
    """Return the processor time of a session's processes, and whether one of them runs or could."""
    ticks, runs = 0, False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
                runs |= fields[0] in "RD"
    return ticks / TICK, runs


def end_session(session: int, reap: bool) -> None:
    """End all processes of a session: the fork and what its tests have started."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(pid), signal.SIGKILL)
    if reap:
        os.waitpid(session, 0)


def unmount_below(folder: Path) -> None:
    """Unmount the file systems that a test mounted and could not unmount any more."""
    for line in Path("/proc/mounts").read_text().splitlines():
        target = line.split(" ")[1]
        if target.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", target], check=False)
