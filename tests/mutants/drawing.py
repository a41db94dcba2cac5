"""Draws mutants: places of the package by a seed, and of each place one of the changes that cosmic-ray knows for it."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import Visitor
from cosmic_ray.mutating import mutate_code

from tests.checkout import ROOT

GUARDS = {"zip": ("strict",), "dataclass": ("frozen", "slots")}
NEEDS_ARGUMENTS = {"core/VariableReplacer", "core/VariableInserter"}


class Mutant(NamedTuple):
    """One change of one place."""

    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    def source(self) -> str:
        """Return the changed source of the file."""
        source = changed_source(self)
        assert source is not None, self
        return source


@functools.cache
def original_source(path: str) -> str:
    """Return what a file said when it was first asked for: the checkout may change while mutants are tried."""
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def changed_source(mutant: Mutant) -> str | None:
    """Return the source with a change, or None where the change makes no program, or the same one."""
    source = original_source(mutant.path)
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    try:
        changed = mutate_code(source, operator, mutant.occurrence)
        same = changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
    except (AttributeError, SyntaxError):  # an exception with a dotted name, for one
        return None
    return None if same else str(changed)


class Places(Visitor):  # type: ignore[misc]
    """Finds where operators can change a file, each in the order of its occurrences."""

    def __init__(self, operators: dict[str, Any]) -> None:
        self.operators = operators
        self.found: dict[str, list[tuple[int, int]]] = {name: [] for name in operators}

    def visit(self, node: Any) -> Any:
        for name, operator in self.operators.items():
            self.found[name] += [position[0] for position in operator.mutation_positions(node)]
        return node


def without_effect(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield from where to where a file holds what never runs, or only guards against mistakes of who changes it."""
    for node in ast.walk(ast.parse(source)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts.append(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in GUARDS:
            parts += [given for given in node.keywords if given.arg in GUARDS[ast.unparse(node.func)]]
        for part in filter(None, parts):
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def draw(folder: str, count: int, seed: int, left_out: list[str]) -> list[Mutant]:
    """Draw so many places of a folder of the package, without some operators and files that are left out.

    Each place has a lot of its own, from what its line says: a change of the package elsewhere changes no other lot.
    """
    names = sorted(set(cosmic_ray.plugins.operator_names()) - NEEDS_ARGUMENTS - {f"core/{name}" for name in left_out})
    operators = {name: cosmic_ray.plugins.get_operator(name)() for name in names}
    lots: list[tuple[str, Mutant]] = []
    for file in sorted((ROOT / "aten_dump" / folder).rglob("*.py")):
        if file.name in left_out:
            continue
        path = file.relative_to(ROOT).as_posix()
        source = original_source(path)
        lines, same = source.splitlines(), Counter[str]()
        for place, changes in sorted(changes_of(source, operators).items()):
            text = f"{seed} {path} {lines[place[0] - 1].strip()}"
            same[text] += 1
            lot = sha256(f"{text} {same[text]}".encode()).hexdigest()
            lots.append((lot, Mutant(path, *place, *changes[int(lot[:8], 16) % len(changes)])))
    valid = (mutant for _, mutant in sorted(lots) if changed_source(mutant) is not None)
    return list(islice(valid, count))


def changes_of(source: str, operators: dict[str, Any]) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Return the changes that operators know for each place of a file that can run."""
    skipped, visitor = list(without_effect(source)), Places(operators)
    visitor.walk(parso.parse(source))
    changes: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name, places in visitor.found.items():
        for occurrence, place in enumerate(places):
            if not any(start <= place < end for start, end in skipped):
                changes.setdefault(place, []).append((name, occurrence))
    return changes
