"""Runs a program of `tests.launch.programs` bare, and under ``aten-dump run``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import Dump, open_dump
from tests.checkout import ROOT
from tests.distributed.launching import launch

PYTHON = (sys.executable, "-W", "ignore")
TORCHRUN = (*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (*PYTHON, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--mixed_precision", "no")


# Processes of torch with gloo abort at their end now and then, with nothing of ours in them (seen on 25 November 2026).
_BARE_RUNS = 3


@dataclass(frozen=True)
class Ran:
    """What a program did."""

    done: subprocess.CompletedProcess[str]
    folder: Path

    def result(self, rank: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.folder / f"rank{rank}.pt")
        return found

    @property
    def dump(self) -> Dump:
        return open_dump(self.folder / "dump")


def run(program: str, folder: Path, launcher: tuple[str, ...] = PYTHON, **options: Any) -> tuple[Ran, Ran]:
    """Run a program without a dump and with one; options go to the recorded run's command line."""
    command = [*launcher, "-m", "tests.launch.programs", program]
    for attempt in range(_BARE_RUNS):
        bare = start(command, folder / f"bare{attempt}")
        if "SIGABRT" not in bare.done.stderr:
            break
    return bare, record(program, folder, launcher, **options)


def record(program: str, folder: Path, launcher: tuple[str, ...] = PYTHON, **options: Any) -> Ran:
    """Run a program with a dump; options go to the command line."""
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    recording = [*PYTHON, "-m", "aten_dump", "run", "--path", str(folder / "recorded" / "dump"), *given, "--"]
    return start([*recording, *launcher, "-m", "tests.launch.programs", program], folder / "recorded")


def bare_ranks(program: str, folder: Path) -> list[dict[str, Any]]:
    """Return what two ranks come to without a dump; they are forked, as a launcher that imports torch three times takes long."""
    folder.mkdir()
    with socket.socket() as free, pytest.MonkeyPatch.context() as environment:
        free.bind(("127.0.0.1", 0))
        environment.setenv("MASTER_ADDR", "127.0.0.1")
        environment.setenv("MASTER_PORT", str(free.getsockname()[1]))
        free.close()
        return launch(program, folder, module="tests.launch.programs").results


def environment() -> dict[str, str]:
    """Return the environment without what a run around this one may have put there."""
    found = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name in ("ATEN_DUMP_CONFIG", "ATEN_DUMP_RUN", "ATEN_DUMP_RUN_RANK", "ATEN_DUMP_RUN_PROCESS"):
        found.pop(name, None)
    return found


def start(command: list[str], folder: Path) -> Ran:
    done = subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env=environment(),
        input="from stdin",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Ran(done, folder)


def same(bare: Any, recorded: Any) -> bool:
    """Return True if two results are equal to the bit."""
    if isinstance(bare, dict):
        return bare.keys() == recorded.keys() and all(same(bare[name], recorded[name]) for name in bare)
    return torch.equal(bare, recorded) if isinstance(bare, torch.Tensor) else bool(bare == recorded)
