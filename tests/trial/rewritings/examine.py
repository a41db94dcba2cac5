"""Run a case, compare it with its baseline, and say what the tool made of it."""

from __future__ import annotations

import ast
import re
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from aten_dump import AtenDumpError, compare, open_dump
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.evidence.findings import Finding, Place

from .running import Line, Program

Outcome = Literal[
    "agree", "accused", "undecided", "line", "near", "elsewhere", "passed", "crash", "not honest", "no effect"
]
RIGHT: tuple[Outcome, ...] = ("agree", "line", "near", "no effect")
_NEAR: tuple[Outcome, ...] = ("line", "near", "elsewhere")
_CLOSE = 5  # lines
_HONEST, _EFFECT = 1e-8, 1e-5  # relative: what rounding of float64 may do; what counts as an effect
_PLACE = re.compile(r"([^ /]+\.py):(\d+)")


@dataclass(frozen=True)
class Case:
    """A program in two forms; "way x", "bug y" are what is chosen on each side."""

    program: str
    target: tuple[str, ...]
    baseline: tuple[str, ...] = ()

    @property
    def bug(self) -> str:
        return next((one.removeprefix("bug ") for one in self.target if one.startswith("bug ")), "")

    def __str__(self) -> str:
        beside = f" against {' + '.join(self.baseline)}" if self.baseline else ""
        return f"{self.program}: {' + '.join(self.target) or 'as it is'}{beside}"


@dataclass(frozen=True)
class Said:
    """What came of a case."""

    outcome: Outcome
    text: str
    answer: str = ""
    compared: float = 0.0  # CPU seconds
    recorded: float = 0.0  # of both sides


def cases_of(program: Program) -> list[Case]:
    """Return each way, half of them both ways round, each bug, and each second bug in a program written otherwise."""
    ways, bugs = program.names("way"), program.names("bug")
    together = [(ways[number % len(ways)], bug) for number, bug in enumerate(bugs) if number % 2]
    found = [Case(program.name, (f"way {way}",)) for way in ways]
    found += [Case(program.name, (f"bug {bug}",)) for bug in bugs]
    found += [Case(program.name, (f"way {way}", f"bug {bug}")) for way, bug in (*together, *program.together)]
    found += [Case(program.name, (), (f"way {way}",)) for way in ways[::2]]
    return list(dict.fromkeys(found))


def examine(case: Case, program: Program, folder: Path) -> Said:
    """Say what the tool makes of a case."""
    torch.set_num_threads(1)
    differs = differ(bare(program, case.target), bare(program, case.baseline), _EFFECT if case.bug else _HONEST)
    if case.bug and not differs:
        return Said("no effect", "losses, gradients and what is left are what they were")
    if differs and not case.bug:
        return Said("not honest", "it differs in float64")
    paths = folder / "target", folder / "baseline"
    begun = time.process_time()
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    guilty = program.go(case.target, paths[0]).guilty
    program.go(case.baseline, paths[1])
    recorded = time.process_time() - begun
    begun = time.process_time()
    try:
        found = compare(*paths)
        answer = found.answer()
        outcome = _judged(case, program, found, guilty)
    except (AtenDumpError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        return Said("crash", f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc())
    seconds = time.process_time() - begun
    return Said(outcome, answer.splitlines()[0], answer, seconds, recorded)


def bare(program: Program, chosen: tuple[str, ...]) -> list[Tensor]:
    """Run it bare in float64; return what it is judged by."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return program.go(chosen).ends
    finally:
        torch.set_default_dtype(before)


def differ(ours: list[Tensor], theirs: list[Tensor], allowed: float) -> bool:
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        return True
    for one, two in zip(ours, theirs, strict=True):
        off, size = (one - two).norm(), two.norm()
        if off.isnan() != size.isnan() or off > allowed * size + 1e-12:
            return True
    return False


# -- where it points -----------------------------------------------------------------------------------------------------


def _judged(case: Case, program: Program, found: Comparison, guilty: set[str]) -> Outcome:
    if not case.bug:
        return ("agree", "accused", "undecided")[found.exit_code]  # type: ignore[return-value]
    if found.exit_code == 0:
        return "passed"
    if found.exit_code != 1 or found.cause is None:
        return "undecided"
    if guilty:
        named = {place.module for place in (found.cause.row.target, found.cause.row.baseline) if place is not None}
        return "line" if named & guilty else "elsewhere"
    return min(
        (_near(line, program, case.bug) for line in _lines(found, found.cause, program)),
        key=_NEAR.index,
        default="elsewhere",
    )


def _lines(found: Comparison, cause: Finding, program: Program) -> Iterator[Line]:
    """Yield the lines of the program that the named call comes from; of a backward call those of its forward call too."""
    names = {file.name for file in program.files}
    for place, path in ((cause.row.target, found.target), (cause.row.baseline, found.baseline)):
        for source in [] if place is None else _sources(place, path):
            yield from ((file, int(line)) for file, line in _PLACE.findall(source) if file in names)


def _sources(place: Place, path: str) -> list[str]:
    call = open_dump(path).step(place.step).rank(place.rank)[place.call]
    found = [place.source]
    while call.forward is not None:  # twice for a gradient of a gradient
        call = call.forward
        found.append(str(call.source or ""))
    return found


def _near(line: Line, program: Program, bug: str) -> Outcome:
    places = program.places(bug)
    if line in places:
        return "line"
    scopes = _scopes(program)
    close = any(
        (line[0] == file and abs(line[1] - place) <= _CLOSE) or scopes.get(line, line) == scopes.get((file, place))
        for file, place in places
    )
    return "near" if close else "elsewhere"


def _scopes(program: Program) -> dict[Line, Line]:
    """Name the module, or a function of twenty lines at most, for each line that is in one."""
    found: dict[Line, Line] = {}
    for file, tree in program.trees.items():
        for node in tree.body:
            short = isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno <= 20
            if isinstance(node, ast.ClassDef) or short:
                inside = [(file.name, at) for at in range(node.lineno, (node.end_lineno or 0) + 1)]
                found.update(dict.fromkeys(inside, (file.name, node.lineno)))
    return found
