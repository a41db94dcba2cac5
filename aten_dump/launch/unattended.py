"""Records the process that it is in, without a word of the program's.

Theory of operation
    `begin` is called when torch has been imported. Nothing is recorded before the first call of a module: launchers
    import torch too, workers of a DataLoader and a parent that spawns ranks call no module, and by then a rank has
    its process group, the models and, as a rule, the optimizers. What is recorded is what a `DumpMode` would record
    around all that follows: it begins below whatever modes the program has entered, and `StepEnds` ends its steps.

    It ends with the process: multiprocessing's finalizers run at the exit of plain processes, which is before the
    interpreter takes itself apart, and of spawned and forked ones, which never come to `atexit`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from multiprocessing.util import Finalize
from typing import Final

import torch
import torch.utils.data
from torch.optim import Optimizer

from ..capture.launcher_rank import folder_of_attempt, rank_and_world_size
from ..capture.mode import DumpMode
from ..config import DumpConfig, Selection
from ..errors import StoreError
from .live_objects import models_of, optimizers
from .next_module_call import NextModuleCall
from .step_ends import StepEnds

RECORDED_RANK: Final = "ATEN_DUMP_RUN_RANK"  # set in a process that records, for its children to see
_EARLY: Final = 5  # before multiprocessing ends daemonic children


def begin(variable: str) -> Unattended:
    """Wait for the first call of a module; record from there by the config that the environment has in `variable`."""
    return Unattended(DumpConfig.from_dict(json.loads(os.environ[variable]), f"the variable {variable}"))


class Unattended:
    """The recording of this process: waits, records, ends."""

    def __init__(self, config: DumpConfig) -> None:
        self._config = config
        self._dump: DumpMode | None = None
        self._known: set[int] = set()  # optimizers that were looked at
        self._several = False
        self._rank = 0
        self._is_first = False  # of the ranks that record: it says at the end where the dump is
        self._ends = StepEnds(self._is_alone, self._end_step)
        self._first_module = NextModuleCall(self._start)

    def _is_to_record(self) -> bool:
        """Return True if this process is a rank of the program, and nobody records it yet."""
        if self._dump is not None or DumpMode.current() is not None:
            return False
        if torch.utils.data.get_worker_info() is not None:
            return False  # modules that transform its samples
        if os.environ.get(RECORDED_RANK) != _rank_text():
            return True
        sys.stderr.write(
            f"aten_dump: process {os.getpid()} was started by rank {rank_and_world_size()[0]}, which records, and has "
            "no other rank: it is not recorded\n"
        )
        return False

    def _start(self) -> None:
        if not self._is_to_record():
            return
        found = optimizers()
        self._look_at(found)
        self._dump = DumpMode(self._config, model=models_of(found) or None, outermost=True)
        os.environ[RECORDED_RANK] = _rank_text()
        Finalize(None, self.close, exitpriority=_EARLY)
        try:
            self._dump.start()
        except StoreError as error:  # who gave the path reads this, and wrote no line that a traceback would name
            sys.stderr.write(f"aten_dump: {error}. aten-dump run has --path and --overwrite for that\n")
            raise SystemExit(2) from None
        self._rank, world_size = rank_and_world_size()  # a program may have left its process group when it ends
        recorded = Selection.parse("ranks", self._config.ranks)
        self._is_first = self._rank == next((rank for rank in range(world_size) if rank in recorded), None)

    def _look_at(self, found: list[Optimizer]) -> None:
        self._known.update(map(id, found))
        self._several = len(found) > 1

    def _is_alone(self, optimizer: Optimizer) -> bool:
        if id(optimizer) not in self._known:  # made later
            self._look_at(optimizers())
            self._known.add(id(optimizer))
        return not self._several

    def _end_step(self) -> None:
        dump = self._dump
        if dump is None and self._first_module.cancel():
            self._start()  # a program without modules: recorded from the second step on
            dump = self._dump
        if dump is not None:
            dump.step()

    def close(self) -> None:
        """Commit what is recorded, or wait no more. Idempotent."""
        self._first_module.cancel()
        self._ends.stop()
        dump, self._dump = self._dump, None
        if dump is None:
            return
        error = getattr(sys, "last_value", None)  # what ended the program
        dump.__exit__(None if error is None else type(error), error, None)
        if self._is_first:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                sys.stderr.write(f"aten_dump: {_summary(self._config, self._rank)}\n")
        as_written = dump.unseen.get("compile_eager", 0)
        if as_written and rank_and_world_size()[0] == 0:
            sys.stderr.write(
                f"aten_dump: {as_written} calls of compiled functions ran as written, so a bug of the compiler is not "
                "in this recording; aten-dump run --compile opaque records them compiled\n"
            )


def _summary(config: DumpConfig, rank: int) -> str:
    """Return where the dump is, how much of it this rank wrote, and what to run next."""
    folder, _ = folder_of_attempt(config.path)
    names = [one.name for one in folder.glob("step*") if (one / f"rank{rank}").is_dir()]
    steps = sorted(int(name[4:]) for name in names if name[4:].isdecimal())
    if not steps:
        why = (
            f"the trigger {config.trigger!r} has not fired" if config.trigger else f"of steps={config.steps!r} none ran"
        )
        return f"no step was recorded in {folder}: {why}"
    text = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps ({steps[0]} to {steps[-1]})"
    return f"{text} recorded in {folder}. Next: aten-dump ls {shlex.quote(str(folder))}"


def _rank_text() -> str:
    rank, world_size = rank_and_world_size()
    return f"{rank}/{world_size}"
