"""The pool of healthy programs: no rule may raise an alarm on any of them. Each records two steps or so into a folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from aten_dump import DumpConfig, DumpMode
from tests.analysis.held_out.programs import PROGRAMS as HELD_OUT
from tests.trial.programs import PROGRAMS as TRIAL
from tests.trial.rewritings.running import Run, load

from . import loops_flow, loops_models  # noqa: F401 - they add loops
from .loops import LOOPS, recording
from .trainers import TRAINERS


def _trial(name: str, path: Path) -> None:
    training = TRIAL[name].on("cpu")
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=training.model) as dump:
        training.run(dump.step)


def _held_out(name: str, path: Path) -> None:
    run = HELD_OUT[name]()
    optimizer = run.optimizer(run.model.parameters(), **run.settings)
    with recording(path, run.model):
        run.step(optimizer)


def _rewritten(name: str, path: Path) -> None:
    load()[name].train(Run((), path))


def _trained(name: str, path: Path) -> None:
    torch.manual_seed(0)
    TRAINERS[name](path)


def _loop(name: str, path: Path) -> None:
    torch.manual_seed(0)
    LOOPS[name](path)


HEALTHY: dict[str, Callable[[Path], None]] = {
    **{f"loop {name}": partial(_loop, name) for name in LOOPS},
    **{f"trainer {name}": partial(_trained, name) for name in TRAINERS},
    **{f"trial {name}": partial(_trial, name) for name in TRIAL},
    **{f"held out {name}": partial(_held_out, name) for name in HELD_OUT},
    **{f"rewritten {name}": partial(_rewritten, name) for name in load()},
}
