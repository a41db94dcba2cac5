"""The cases of this trial: each layout of each program that it suits, honest and with each mistake that it asks for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

from tests.trial.rewritings.examine import Case, bare
from tests.trial.rewritings.running import Line, Program
from tests.trial.rewritings.running import Run as AnyRun

from . import kinds, programs
from .tasks import Run, Task

Way = Callable[[Run, Task], None]
HERE = Path(__file__).parent


def _modules(package: ModuleType) -> dict[str, ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}


KINDS: dict[str, tuple[Way, Way, str]] = {
    name: kind for module in _modules(kinds).values() for name, kind in module.KINDS.items()
}
WAYS: dict[str, Way] = {way.__name__.replace("_", " "): way for _, way, _ in KINDS.values()} | {
    name: way for name, (way, _, _) in KINDS.items()
}


# What a mistake spoils without a call of its own: it is located where that is read first, at lines marked `# at the ...`.
READ = {
    "the inputs": {
        "one input of the next row",
        "one input not reordered",
        "bucket cut too short",
        "the first half twice",
        "a token cut off",
        "both have the same rows",
        "position in the data",
        "the word before is read again",
    },
    "the positions": {
        "positions begin anew",
        "positions one late",
        "positions run on",
        "positions not shifted",
        "the word before is read again",
    },
    "the mask": {
        "lengths of row 0",
        "mask forgotten",
        "mask one too long",
        "mask one too short",
        "lengths of the rows before",
        "lengths of the first bucket",
        "another mask forgotten",
        "one input not reordered",
        "one input of the next row",
        "boundary one late",
        "documents see one another",
        "a padded token is seen",
        "mask of the right side",
        "an empty slot is seen",
        "newest word not seen",
        "rest of the page is seen",
        "prompt sees one more",
        "window one short",
        "chunk not causal",
        "earlier chunks hidden",
        "mask of the first chunk",
    },
    "the labels": {
        "labels not reordered",
        "labels one early",
        "labels not turned",
        "labels of the first half",
        "labels in the old order",
        "rows left sorted",
        "padding counts in the softmax",
    },
    "the keys": {"v taken for k"},
    "the boundary": {
        "boundary cut",
        "last one not handed back",
        "gradients of the other micro-batch",
        "scaled at the boundary",
    },
    "the state": {
        "state begins anew",
        "state of the next row",
        "state of the prompt kept",
        "tail begins anew",
        "tail of the prompt kept",
        "the word before is read again",
        "one cache for both layers",
    },
}


class Layouts(Program):
    """A program in all its layouts."""

    def places(self, bug: str) -> set[Line]:
        """Return the lines of a bug, and those where what it spoils is first read."""
        return (
            super()
            .places(bug)
            .union(*(super(Layouts, self).places(what) for what, bugs in READ.items() if bug in bugs))
        )

    def go(self, chosen: Iterable[str], path: Path | None = None) -> AnyRun:
        run = Run(tuple(chosen), path)
        self.train(run)
        return run


def _train(task: Callable[[Run], Task], on: Run) -> None:
    (way,) = (WAYS[one.removeprefix("way ")] for one in on.chosen if one.startswith("way "))
    way(on, task(on))


def load() -> dict[str, Layouts]:
    """Return the programs by name."""
    files = tuple(
        sorted(file for file in HERE.rglob("*.py") if file.name not in ("__init__.py", "tasks.py", "cases.py"))
    )
    found = _modules(programs)
    return {name: Layouts(name, files, partial(_train, one.task)) for name, one in found.items()}


def kinds_of(program: Layouts) -> list[str]:
    """Return the layouts that suit a program."""
    can = importlib.import_module(f"{programs.__name__}.{program.name}").task(Run()).can
    return [name for name, (_, _, needs) in KINDS.items() if can >= set(needs.split())]


def cases_of(program: Layouts) -> Iterator[Case]:
    """Yield each layout, every second one both ways round, with nothing wrong and with each mistake that it asks for."""
    for number, kind in enumerate(kinds_of(program)):
        target, baseline = f"way {kind}", f"way {KINDS[kind][1].__name__.replace('_', ' ')}"
        yield Case(program.name, (target,), (baseline,))
        if number % 2 == len(program.name) % 2:
            yield Case(program.name, (baseline,), (target,))
        for bug in asked(program, target):
            yield Case(program.name, (target, f"bug {bug}"), (baseline,))


def asked(program: Layouts, way: str) -> list[str]:
    """Return the mistakes that a layout of a program asks for."""
    run = program.go((way,))
    assert isinstance(run, Run)
    return list(run.asked)


__all__ = ["KINDS", "Case", "Layouts", "bare", "cases_of", "load"]
