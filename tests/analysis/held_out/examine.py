"""Record a case, compare and replay it as a user would, and say whether the guilty call was named."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from aten_dump import DumpConfig, DumpMode, compare, open_dump, replay
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.replay import Replay

from .devices import KERNELS, Device, Spoil
from .programs import PROGRAMS, Run

Change = Callable[[Run], None]


@dataclass(frozen=True)
class Case:
    """A change of a program or of a kernel, and who is guilty of it."""

    program: str
    name: str
    change: Change = lambda run: None
    base: Change = lambda run: None
    device: str = "torch"
    spoil: Spoil | None = None
    guilty: str = ""  # regular expression of "call|module|phase" of the guilty call; "" for an honest case
    by_replay: bool = False  # replay alone must name it too
    steps: int = 1

    def __str__(self) -> str:
        return f"{self.program}: {self.name}"


@dataclass(frozen=True)
class Said:
    """What the tool said of a case."""

    right: bool
    text: str


def record(
    path: Path, program: str, change: Change, device: Device | None, *, steps: int = 1, data: str = "tensor"
) -> Path:
    run = PROGRAMS[program]()
    change(run)
    torch.set_num_threads(run.threads)
    optimizer = run.optimizer(run.model.parameters(), **run.settings)
    torch.manual_seed(99)
    config = DumpConfig(path=str(path), data=data)  # type: ignore[arg-type]
    with device or nullcontext(), DumpMode(config, model=run.model) as dump:
        for _ in range(steps):
            run.step(optimizer)
            dump.step()
    torch.set_num_threads(1)
    return path


def examine(case: Case, folder: Path, bases: dict[str, Path]) -> Said:
    """Compare and replay a case; `bases` keeps baselines."""
    key = f"{case.program} {case.base} {case.steps}"
    if key not in bases:
        bases[key] = record(folder / f"base{len(bases)}", case.program, case.base, None, steps=case.steps)
    device = Device(KERNELS[case.device], case.spoil)
    target = record(folder / "target", case.program, both(case.base, case.change), device, steps=case.steps)
    if case.spoil is not None and device.count[case.spoil.op] <= case.spoil.number:
        raise ValueError(f"{case} has only {device.count[case.spoil.op]} calls of {case.spoil.op}")
    found = compare(target, bases[key])
    replayed: Replay = replay(open_dump(target).step(0).rank(0))
    return judged(case, found, replayed)


def both(one: Change, two: Change) -> Change:
    """Return one change after the other."""

    def change(run: Run) -> None:
        one(run)
        two(run)

    return change


def judged(case: Case, found: Comparison, replayed: Replay) -> Said:
    cause, suspect = found.cause, replayed.guilty
    named = "" if cause is None else "|".join((cause.row.place.call, cause.row.place.module, cause.row.place.phase))
    accused = "" if suspect is None else "|".join((suspect.name, suspect.module, suspect.phase))
    text = f"compare {found.verdict}: {'-' if cause is None else cause.kind + ' ' + named}; replay: {accused or '-'}"
    text += "" if suspect is None else f" x{suspect.ratio:.3g} of {len(replayed.suspects)}"
    if not case.guilty:
        return Said(cause is None and suspect is None and found.exit_code == 0, text)
    wanted = re.compile(case.guilty)
    right = bool(cause is not None and wanted.search(named))
    if suspect is not None or case.by_replay:
        right = right and bool(wanted.search(accused))
    return Said(right, text)
