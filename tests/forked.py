"""Programs of tests in processes that have imported torch already, forked from one that has done nothing else.

An import of torch and of what its optimizers ask for takes seconds, several times what most of these programs take. How
a program starts and how it ends, real starts tell: those of `tests/launch/`, `tests/cli/` and `tests/test_examples.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from tests.checkout import ROOT

# Nothing of ours is imported before: a program has what lies in the checkout when it is started.
FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.tensor.parallel"])


@dataclass(frozen=True)
class Ended:
    """How a program ended, and all that it said."""

    code: int | None
    said: str


def start(
    command: Sequence[str], said: Path, environment: Mapping[str, str] | None = None, folder: Path = ROOT
) -> BaseProcess:
    """Run what `python` would run by ``-m module ...`` or ``-c source ...`` in a folder; what it says goes to a file."""
    given = dict(os.environ if environment is None else environment)
    process = FORKS.Process(target=_run, args=([*command], str(said), given, str(folder)))
    process.start()
    return process


def run(command: Sequence[str], said: Path, environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> Ended:
    """Run it to its end, which must come within two minutes."""
    process = start(command, said, environment, folder)
    process.join(120)
    in_time = process.exitcode is not None
    process.kill()
    process.join()
    assert in_time, f"it does not end: {said.read_text()}"
    return Ended(process.exitcode, said.read_text())


def _run(command: list[str], said: str, environment: dict[str, str], folder: str) -> None:
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [str(ROOT), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    kind, program, *arguments = command
    sys.argv = [program if kind == "-m" else kind, *arguments]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
