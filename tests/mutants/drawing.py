"""Draws mutants: places of the package by a seed, and of each place one of the changes that cosmic-ray knows for it."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import Visitor
from cosmic_ray.mutating import mutate_code

from tests.checkout import ROOT

NEEDS_ARGUMENTS = {"core/VariableReplacer", "core/VariableInserter"}


class Mutant(NamedTuple):
    """One change of one place."""

    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    def source(self) -> str | None:
        """Return the changed source of the file."""
        operator = cosmic_ray.plugins.get_operator(self.operator)()
        return mutate_code((ROOT / self.path).read_text(encoding="utf-8"), operator, self.occurrence)  # type: ignore[no-any-return]


class Places(Visitor):  # type: ignore[misc]
    """Finds where an operator can change a file, in the order of its occurrences."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.found: list[tuple[int, int]] = []

    def visit(self, node: Any) -> Any:
        self.found += [position[0] for position in self.operator.mutation_positions(node)]
        return node


def without_effect(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield from where to where a file holds what never runs: annotations, and imports for types."""
    for node in ast.walk(ast.parse(source)):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None), node if for_types else None):
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def draw(folder: str, count: int, seed: int, left_out: list[str]) -> list[Mutant]:
    """Draw so many places of a folder of the package."""
    names = sorted(set(cosmic_ray.plugins.operator_names()) - NEEDS_ARGUMENTS - {f"core/{name}" for name in left_out})
    operators = {name: cosmic_ray.plugins.get_operator(name)() for name in names}
    changes: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    for file in sorted((ROOT / "aten_dump" / folder).rglob("*.py")):
        source, path = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
        tree, skipped = parso.parse(source), list(without_effect(source))
        for name, operator in operators.items():
            visitor = Places(operator)
            visitor.walk(tree)
            for occurrence, place in enumerate(visitor.found):
                if not any(start <= place < end for start, end in skipped):
                    changes.setdefault((path, *place), []).append((name, occurrence))
    chance = random.Random(f"{seed} {folder}")
    places = chance.sample(sorted(changes), min(count, len(changes)))
    return [Mutant(*place, *chance.choice(changes[place])) for place in places]
