"""Starts a program of `tests.distributed.programs` in two real processes that talk over gloo."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from tests.checkout import ROOT
from tests.forked import start

RANKS = 2


@dataclass(frozen=True)
class Launched:
    """What a program left: its dumps, and what each rank returned."""

    folder: Path
    results: list[dict[str, Any]]

    def rank(self, dump: str, rank: int = 0, step: int = 0) -> Any:
        return open_dump(str(self.folder / dump)).step(step).rank(rank)


def launch_once(
    program: str,
    factory: pytest.TempPathFactory,
    module: str = "tests.distributed.programs",
    ranks: int = RANKS,
    timeout: float = 120.0,
) -> Launched:
    """Run `program` once for all workers of pytest-xdist, which wait for one another."""
    root = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    name = f"distributed-{module.rpartition('.')[2]}-{program}"
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "done").exists():
            return Launched(folder, [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)])
        failed = root / f"{name}.failed"
        if failed.exists():
            raise AssertionError(failed.read_text())
        folder.mkdir()
        try:
            launched = launch(program, folder, timeout, module=module, ranks=ranks)
        except AssertionError as error:
            failed.write_text(str(error))
            raise
        (folder / "done").touch()
        return launched


def _join(processes: Sequence[Any], watched: list[Path], timeout: float) -> None:
    """Wait until all have ended, or nothing has changed for too long."""
    state, since = None, time.monotonic()
    while any(process.exitcode is None for process in processes) and time.monotonic() < since + timeout:
        next((process for process in processes if process.exitcode is None), processes[0]).join(0.2)
        now = [path.stat().st_mtime_ns for path in watched if path.exists()], [p.exitcode for p in processes]
        if now != state:
            state, since = now, time.monotonic()


def launch(
    program: str, folder: Path, timeout: float = 120.0, module: str = "tests.distributed.programs", ranks: int = RANKS
) -> Launched:
    """Run `program` of a module on all ranks; fails with their output if one of them fails or hangs.

    It hangs when for `timeout` seconds no rank prints, ends, or makes a file or folder in `folder`: a program that
    records many dumps may take as long as the machine needs.
    """
    environment = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("ATEN_DUMP_CONFIG", None)
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    processes = [
        start(["-m", module, program, str(folder)], log, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, log in enumerate(logs)
    ]
    try:
        _join(processes, [folder, *logs], timeout)
        codes = [-1 if process.exitcode is None else process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    if any(codes):
        texts = "\n".join(f"--- rank {rank}\n{log.read_text()[-4000:]}" for rank, log in enumerate(logs))
        raise AssertionError(f"{program} ended with {codes} (-1: it hung)\n{texts}")
    return Launched(folder, [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)])
