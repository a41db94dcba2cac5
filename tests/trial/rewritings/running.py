"""A program of this trial and one run of it: which ways it is written in, which bugs it has, what it leaves."""

from __future__ import annotations

import ast
import importlib
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
_SHOWN = re.compile(r"# at ([^#]+)$")


class Run:
    """One run of a program; it asks this object how to go."""

    def __init__(self, chosen: Iterable[str] = (), path: Path | None = None) -> None:
        self.chosen = frozenset(chosen)
        self.path = path  # where it is recorded; None: it runs bare
        self.ends: list[Tensor] = []

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
    """A file of `programs/`: its function `train(on)` and the names in it."""

    name: str
    file: Path
    train: Callable[[Run], None]
    together: tuple[tuple[str, str], ...] = ()  # ways and bugs: a bug that is in one way only

    @cached_property
    def lines(self) -> list[str]:
        return self.file.read_text(encoding="utf-8").splitlines()

    def names(self, kind: str) -> list[str]:
        """Return the ways or the bugs in it, in the order of the file."""
        return list(dict.fromkeys(name for line in self.lines for name in _NAMED[kind].findall(line)))

    def places(self, bug: str) -> set[int]:
        """Return the lines of a bug: all those of the statements that ask for it, or are marked with it."""
        found: set[int] = set()
        for number, line in enumerate(self.lines, 1):
            shown = _SHOWN.search(line)
            asked = bug in _NAMED["bug"].findall(line)
            if asked or (shown and bug in [name.strip() for name in shown[1].split(",")]):
                found.update(self._statement(number))
        return found

    def _statement(self, line: int) -> range:
        """Return the lines of the shortest statement with this line; of a compound one its head and what it does first."""
        spans = [_span(node) for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]
        return min((span for span in spans if line in span), key=len, default=range(line, line + 1))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse("\n".join(self.lines))


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
            Path(sys.modules[loaded.__name__].__file__ or ""),
            loaded.train,
            getattr(loaded, "TOGETHER", ()),
        )
    return found
