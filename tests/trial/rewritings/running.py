"""A program of this trial and one run of it: which ways it is written in, which bugs it has, what it leaves."""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode

from . import programs

_NAMED = {kind: re.compile(rf'\b{kind}\("([^"]+)"\)') for kind in ("way", "bug")}
Line = tuple[str, int]  # name of a file, number
_SHOWN = re.compile(r"# at ([^#]+)$")


class Run:
    """One run of a program; it asks this object how to go."""

    def __init__(self, chosen: Iterable[str] = (), path: Path | None = None) -> None:
        self.chosen = frozenset(chosen)
        self.path = path  # where it is recorded; None: it runs bare
        self.ends: list[Tensor] = []
        self.guilty: set[str] = set()  # modules whose weights a bug spoils before anything is recorded

    def way(self, name: str) -> bool:
        """Return True if this place is to be written in another, honest way."""
        return f"way {name}" in self.chosen

    def bug(self, name: str) -> bool:
        """Return True if this place is to have this bug."""
        return f"bug {name}" in self.chosen

    @contextmanager
    def steps(self, model: nn.Module | list[nn.Module]) -> Iterator[Callable[[], None]]:
        """Record what is inside; the value ends a step."""
        if self.path is None:
            yield lambda: None
        else:
            with DumpMode(DumpConfig(path=str(self.path), data="tensor"), model=model) as dump:
                yield dump.step

    def keep(self, *tensors: Tensor | None) -> None:
        """Keep what a run is judged by, as it is now."""
        self.ends += [t.detach().double().clone() for t in tensors if t is not None]

    def keep_all(self, tensors: Iterable[Tensor | None]) -> None:
        """Keep tensors of which a rewriting may merge, split or reorder some."""
        flat = [t.detach().double().flatten() for t in tensors if t is not None]
        self.ends.append(torch.cat(flat or [torch.zeros(1)]).sort().values)

    def keep_gradients(self, model: nn.Module) -> None:
        self.keep_all(p.grad for p in model.parameters())

    def keep_weights(self, model: nn.Module) -> None:
        self.keep_all(model.parameters())


@dataclass(frozen=True)
class Program:
    """Its function `train(on)`, the files that it is written in, and the names in them."""

    name: str
    files: tuple[Path, ...]
    train: Callable[[Run], None]
    together: tuple[tuple[str, str], ...] = ()  # ways and bugs: a bug that is in one way only

    def go(self, chosen: Iterable[str], path: Path | None = None) -> Run:
        """Run it once; with a path it is recorded there."""
        run = Run(chosen, path)
        self.train(run)
        return run

    @cached_property
    def lines(self) -> dict[Path, list[str]]:
        return {file: file.read_text(encoding="utf-8").splitlines() for file in self.files}

    def names(self, kind: str) -> list[str]:
        """Return the ways or the bugs in it, in the order of its files."""
        lines = itertools.chain.from_iterable(self.lines.values())
        return list(dict.fromkeys(name for line in lines for name in _NAMED[kind].findall(line)))

    def places(self, bug: str) -> set[Line]:
        """Return the lines of a bug: all those of the statements that ask for it, or are marked with it."""
        found: set[Line] = set()
        for file, lines in self.lines.items():
            for number, line in enumerate(lines, 1):
                shown = _SHOWN.search(line)
                asked = bug in _NAMED["bug"].findall(line)
                if asked or (shown and bug in [name.strip() for name in shown[1].split(",")]):
                    found.update((file.name, at) for at in self._statement(file, number))
        return found

    def _statement(self, file: Path, line: int) -> range:
        """Return the lines of the shortest statement with this line; of a compound one its head and what it does first."""
        spans = [_span(node) for node in ast.walk(self.trees[file]) if isinstance(node, ast.stmt)]
        return min((span for span in spans if line in span), key=len, default=range(line, line + 1))

    @cached_property
    def trees(self) -> dict[Path, ast.Module]:
        return {file: ast.parse("\n".join(lines)) for file, lines in self.lines.items()}


def _span(node: ast.stmt) -> range:
    body: list[ast.stmt] = getattr(node, "body", [])
    if isinstance(node, ast.If):
        return range(node.lineno, (body[-1].end_lineno or 0) + 1)
    return range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)


def load() -> dict[str, Program]:
    """Return all programs by name."""
    found = {}
    for module in sorted(pkgutil.iter_modules(programs.__path__), key=lambda one: one.name):
        loaded = importlib.import_module(f"{programs.__name__}.{module.name}")
        found[module.name] = Program(
            module.name,
            (Path(sys.modules[loaded.__name__].__file__ or ""),),
            loaded.train,
            getattr(loaded, "TOGETHER", ()),
        )
    return found
