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
from typing import Any, Final

import torch
import torch.utils.data
from torch.optim import Optimizer

from ..capture.intercept.next_module_call import NextModuleCall
from ..capture.launcher_rank import folder_of_attempt, rank_and_world_size
from ..capture.mode import DumpMode
from ..config import DumpConfig, Selection
from ..errors import ConfigError, StoreError
from ..watch.run_watch import Watch
from ..whole_files import url_scheme
from .environment import PROCESS
from .live_objects import models_of, optimizers
from .step_ends import StepEnds

RECORDED_RANK: Final = "ATEN_DUMP_RUN_RANK"  # set in a process that records, for its children to see
WATCHED: Final = "watch"  # among the fields in the variable: the options of a Watch
_EARLY: Final = 5  # before multiprocessing ends daemonic children


def begin(variable: str) -> Unattended:
    """Wait for the first call of a module; record or watch from there as the environment has it in `variable`."""
    fields = json.loads(os.environ[variable])
    where = f"the variable {variable}"
    watched = fields.pop(WATCHED, None)
    if watched is not None:
        return UnattendedWatch(watched, DumpConfig.from_dict(fields, where) if fields else None)
    recording = UnattendedRecording(DumpConfig.from_dict(fields, where))
    if os.environ.get(PROCESS) == str(os.getpid()):
        Finalize(None, recording.say_if_nothing, exitpriority=_EARLY - 1)
    return recording


class Unattended:
    """What is done in this process: waits for the first call of a module, ends steps, and ends with the process."""

    def __init__(self) -> None:
        self._known: set[int] = set()  # optimizers that were looked at
        self._several = False
        self._begins_late = False  # where it could not begin at the first call of a module
        self._could_begin = False  # a module was called, or an optimizer took a step
        self._steps = 0  # that have ended
        self._ends = StepEnds(self._is_alone, self._end_step)
        self._first_module = NextModuleCall(self._start)

    def begin(self, found: list[Optimizer]) -> bool:
        """Begin, with the existing optimizers; return False if it cannot begin yet."""
        raise NotImplementedError

    def has_begun(self) -> bool:
        """Return True between `begin` and `end`."""
        raise NotImplementedError

    def step(self) -> None:
        """End a step."""
        raise NotImplementedError

    def end(self) -> None:
        """End, with the process."""
        raise NotImplementedError

    def _is_to_record(self) -> bool:
        """Return True if this process is a rank of the program, and nobody records it yet."""
        if self.has_begun() or DumpMode.current() is not None:
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
        self._could_begin = True
        if not self._is_to_record():
            return
        found = optimizers()
        self._look_at(found)
        if self.begin(found):
            os.environ[RECORDED_RANK] = _rank_text()
            Finalize(None, self.close, exitpriority=_EARLY)

    def _look_at(self, found: list[Optimizer]) -> None:
        self._known.update(map(id, found))
        self._several = len(found) > 1

    def _is_alone(self, optimizer: Optimizer) -> bool:
        if id(optimizer) not in self._known:  # made later
            self._look_at(optimizers())
            self._known.add(id(optimizer))
        return not self._several

    def _end_step(self) -> None:
        if not self.has_begun() and (self._first_module.cancel() or self._begins_late):
            self._start()  # a program without modules, or with an optimizer made later: from the second step on
        self._steps += 1
        if self.has_begun():
            self.step()

    def close(self) -> None:
        """Commit what is recorded, or wait no more. Idempotent."""
        self._first_module.cancel()
        self._ends.stop()
        if self.has_begun():
            self.end()


class UnattendedRecording(Unattended):
    """The recording of this process."""

    def __init__(self, config: DumpConfig) -> None:
        self._config = config
        self._dump: DumpMode | None = None
        self._rank = 0
        self._is_first = False  # of the ranks that record: it says at the end where the dump is
        super().__init__()

    def has_begun(self) -> bool:
        return self._dump is not None

    def begin(self, found: list[Optimizer]) -> bool:
        self._dump = DumpMode(self._config, model=models_of(found) or None, outermost=True)
        try:
            self._dump.start()
        except StoreError as error:  # who gave the path reads this, and wrote no line that a traceback would name
            sys.stderr.write(f"aten_dump: {error}. aten-dump run has --path and --overwrite for that\n")
            raise SystemExit(2) from None
        self._rank, world_size = rank_and_world_size()  # a program may have left its process group when it ends
        recorded = Selection.parse("ranks", self._config.ranks)
        self._is_first = self._rank == next((rank for rank in range(world_size) if rank in recorded), None)
        return True

    def step(self) -> None:
        if self._dump is not None:
            self._dump.step()

    def say_if_nothing(self) -> None:
        """Print that neither this process nor one that it started recorded anything, and why."""
        folder, is_local = folder_of_attempt(self._config.path)[0], url_scheme(str(self._config.path)) is None
        if is_local and not (self._could_begin or folder.exists()):
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(
                    f"aten_dump: nothing was recorded in {folder}: aten-dump run begins at the first call of a module "
                    "or after the first step of an optimizer, and there was none. In the program, "
                    "`with DumpMode(DumpConfig(...)):` records what stands in its block\n"
                )

    def end(self) -> None:
        dump, self._dump = self._dump, None
        if dump is None:
            return
        error = getattr(sys, "last_value", None)  # what ended the program
        dump.__exit__(None if error is None else type(error), error, None)
        if self._is_first:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                sys.stderr.write(f"aten_dump: {_summary(self._config, self._rank)}\n")
        if self._config.against is not None and (self._is_first or dump.first_difference is not None):
            found = dump.first_difference or f"no difference from {self._config.against}"
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"aten_dump: {found}\n")
        as_written = dump.unseen.get("compile_eager", 0)
        if as_written and rank_and_world_size()[0] == 0:
            sys.stderr.write(
                f"aten_dump: {as_written} calls of compiled functions ran as written, so a bug of the compiler is not "
                "in this recording; aten-dump run --compile opaque records them compiled\n"
            )


class UnattendedWatch(Unattended):
    """The watching of this process.

    Args:
        options: of `Watch`.
        record: where an alert has a step recorded.
    """

    def __init__(self, options: dict[str, Any], record: DumpConfig | None) -> None:
        self._options = options
        self._record = record
        self._watch: Watch | None = None
        super().__init__()
        self._begins_late = True

    def has_begun(self) -> bool:
        return self._watch is not None

    def begin(self, found: list[Optimizer]) -> bool:
        models = models_of(found)
        if not models:
            return False
        try:
            watch = Watch(**self._options, model=models, record=self._record)
            self._watch = watch.start(self._steps, by_hook=False)
        except ConfigError as error:
            sys.stderr.write(f"aten_dump: {error}\n")
            raise SystemExit(2) from None
        return True

    def step(self) -> None:
        if self._watch is not None:
            self._watch.step()

    def end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
            if watch.alerts and rank_and_world_size()[0] == 0:
                sys.stderr.write(f"aten_dump: {len(watch.alerts)} alerts, the first: {watch.alerts[0].text}\n")


def _summary(config: DumpConfig, rank: int) -> str:
    """Return where the dump is, how much of it this rank wrote, and what to run next."""
    folder, _ = folder_of_attempt(config.path)
    found = folder.iterdir() if folder.is_dir() else ()
    names = [one.name for one in found if one.name.startswith("step") and (one / f"rank{rank}").is_dir()]
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
