"""The cases of this trial: each layout of each program that it suits, honest and with each mistake that it asks for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

from tests.trial.rewritings.examine import Case, bare
from tests.trial.rewritings.running import Program
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


class Layouts(Program):
    """A program in all its layouts."""

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
