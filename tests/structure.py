"""Measures the structure of the package: circles, rooms, lines per room. ``python -m tests.structure`` prints it.

Read from the source with ast, so that imports inside functions and under TYPE_CHECKING count too. A room is a folder
below a layer; each file at the root of a layer is a room of its own, as it is what the rooms stand on, or what stands
on them.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.checkout import ROOT

PACKAGE = ROOT / "aten_dump"
Graph = dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class Function:
    """One function or method of the package."""

    where: str
    lines: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Class:
    """One class: how many attributes its instances have and how many methods it defines."""

    where: str
    attributes: int
    methods: int
    docstring: str


def files(package: Path) -> list[Path]:
    return sorted(file for file in package.rglob("*.py") if "__pycache__" not in file.parts)


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, the module first; a file is read once, whichever tests ask."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def import_graph(package: Path) -> Graph:
    """Return which files of the package each file imports, by path relative to the package."""
    known = {module_of(file, package): file.relative_to(package).as_posix() for file in files(package)}
    graph: Graph = {}
    for file in files(package):
        path = file.relative_to(package).as_posix()
        names = imported_names(nodes_of(file), file, package)
        targets = {target for name in names if (target := resolve(name, known)) is not None}
        graph[path] = targets - {path}
    return graph


def module_of(file: Path, package: Path) -> str:
    parts = [package.name, *file.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(nodes: Iterable[ast.AST], file: Path, package: Path) -> Iterator[str]:
    folders = [package.name, *file.relative_to(package).parent.parts]
    for node in nodes:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, level):
                base = folders[: len(folders) - (level - 1)] if level else []
                stem = ".".join([*base, *([module] if module else [])])
                yield from (f"{stem}.{alias.name}" for alias in names)


def resolve(name: str, known: dict[str, str]) -> str | None:
    """Return the file that `name` (a module, or a name in one) is in."""
    owner = name.rpartition(".")[0]
    return known.get(name) or known.get(owner)


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one node, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def room_of(path: str) -> str:
    """Return the room that a file is in: its folder, or the file itself at the root of a layer (or of a nested room)."""
    folder, _, _ = path.rpartition("/")
    return folder if "/" in folder else path


def room_graph(graph: Graph) -> Graph:
    rooms: Graph = {}
    for path, targets in graph.items():
        rooms.setdefault(room_of(path), set()).update(room_of(t) for t in targets)
    return {room: targets - {room} for room, targets in rooms.items()}


def both_ways(rooms: Graph) -> list[tuple[str, str]]:
    return sorted((a, b) for a in rooms for b in rooms[a] if a < b and a in rooms.get(b, ()))


def functions(package: Path) -> list[Function]:
    return [
        Function(f"{file.relative_to(package).as_posix()}:{node.name}", lines_of(node), parameters_of(node))
        for file in files(package)
        for node in nodes_of(file)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def classes(package: Path) -> list[Class]:
    return [
        Class(
            f"{file.relative_to(package).as_posix()}:{node.name}",
            len(attributes_of(node)),
            sum(isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) for item in node.body),
            ast.get_docstring(node) or "",
        )
        for file in files(package)
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef)
    ]


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names that are set on `self` in the class, declared or set in its body, or listed in __slots__.

    Names in capitals are constants, no attributes.
    """
    found: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name("self"), attr=attr, ctx=ast.Store()):
                found.add(attr)
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name("__slots__")], value=ast.Tuple(elts)):
                found |= {str(slot.value) for slot in elts if isinstance(slot, ast.Constant)}
            case ast.Assign(targets=[ast.Name(name)]):
                found.add(name)
    return {name for name in found if not name.isupper() and not name.startswith("__")}


def is_record(one: Class) -> bool:
    """Return True if a class is a plain record: it has fields and hardly a method."""
    return one.methods <= 3


def is_large(one: Class) -> bool:
    """Return True if a class needs a reason, in its docstring, for how much is in it."""
    return one.methods > 20 or (one.attributes > 15 and not is_record(one))


def sizes(package: Path) -> dict[str, int]:
    return {f.relative_to(package).as_posix(): len(f.read_text(encoding="utf-8").splitlines()) for f in files(package)}


def lines_per_room(lengths: dict[str, int]) -> Counter[str]:
    """Return the lines of Python in each layer, and in each folder directly below a layer."""
    rooms: Counter[str] = Counter()
    for path, lines in lengths.items():
        folders = path.split("/")[:-1]
        for depth in (1, 2)[: len(folders)] if folders else ():
            rooms["/".join(folders[:depth])] += lines
    return rooms


def same_names(package: Path) -> dict[str, list[str]]:
    """Return module names that are used more than once."""
    found: dict[str, list[str]] = {}
    for file in files(package):
        if file.stem not in ("__init__", "__main__"):
            found.setdefault(file.stem, []).append(file.relative_to(package).as_posix())
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def report(package: Path) -> Iterable[str]:
    graph = import_graph(package)
    lengths = sizes(package)
    every = functions(package)
    spans = [function.lines for function in every]
    yield f"circles: {circles(graph)}"
    yield f"rooms both ways: {both_ways(room_graph(graph))}"
    yield f"circles of rooms: {circles(room_graph(graph))}"
    p90 = statistics.quantiles(spans, n=10)[-1]
    yield f"functions: median {statistics.median(spans)}, p90 {p90:.0f}, max {max(spans)}"
    yield f"functions above 50 lines: {[f.where for f in every if f.lines > 50]}"
    yield f"above 5 parameters: {[(f.where, f.parameters) for f in every if f.parameters > 5]}"
    yield f"large classes: {[(c.where, c.attributes, c.methods) for c in classes(package) if is_large(c)]}"
    yield f"same names: {same_names(package)}"
    yield f"lines: {sum(lengths.values())}"
    for room, lines in sorted(lines_per_room(lengths).items()):
        yield f"  {room}: {lines}"


if __name__ == "__main__":
    print("\n".join(report(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)))
