"""The tests mirror the rooms of the package: a room that decides something has tests in the folder of its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.checkout import ROOT
from tests.structure import PACKAGE, files, imported_names, module_of, nodes_of, resolve

TESTS = ROOT / "tests"


def has_logic(file: Path) -> bool:
    """Whether a function of the file does more than to name what others must do."""
    nodes = [node for node in nodes_of(file) if isinstance(node, ast.FunctionDef)]
    return any(
        not isinstance(line, (ast.Expr, ast.Raise, ast.Pass)) or calls(line) for node in nodes for line in node.body
    )


def calls(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and not isinstance(line.value, ast.Constant)


def imported_by(test: Path, known: dict[str, str], handed_on: dict[str, str]) -> Iterator[str]:
    """Yield the files of the package that a test imports; a name that a package hands on is of the file it comes from."""
    for name in imported_names(nodes_of(test), test, TESTS):
        target = handed_on.get(name) or resolve(name, known)
        if target is not None:
            yield target


def names_handed_on(known: dict[str, str]) -> dict[str, str]:
    """Return the files that names of a package's __init__ come from."""
    found = {}
    for init in PACKAGE.rglob("__init__.py"):
        for name in imported_names(nodes_of(init), init, PACKAGE):
            target = resolve(name, known)
            if target is not None:
                found[f"{module_of(init, PACKAGE)}.{name.rpartition('.')[2]}"] = target
    return found


def without_test() -> list[str]:
    known = {module_of(file, PACKAGE): file.relative_to(PACKAGE).as_posix() for file in files(PACKAGE)}
    handed_on = names_handed_on(known)
    imported: dict[Path, set[str]] = {}
    for test in TESTS.rglob("test_*.py"):
        folder = test.parent.relative_to(TESTS)
        imported.setdefault(folder, set()).update(imported_by(test, known, handed_on))
    rooms = {
        file.relative_to(PACKAGE).parent for file in files(PACKAGE) if file.name != "__init__.py" and has_logic(file)
    }
    return sorted(room.as_posix() for room in rooms if not is_tested(room, imported))


def is_tested(room: Path, imported: dict[Path, set[str]]) -> bool:
    """Return True if a room has tests in a folder of its own, or tests above it that import one of its files."""
    if any((TESTS / room).glob("test_*.py")):
        return True
    below = (paths for folder, paths in imported.items() if folder == room or room in folder.parents)
    return any(Path(path).parent == room for paths in below for path in paths)


def test_every_room_that_decides_has_tests_in_the_folder_of_its_name() -> None:
    assert without_test() == [], "write a test in the folder of its name that asserts what it decides"


if __name__ == "__main__":
    print("\n".join(without_test()))
