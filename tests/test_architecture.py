"""docs/architecture.md tells what is: its paths are files, and its table of rooms is in the order of the imports."""

from __future__ import annotations

import re

from tests import structure
from tests.checkout import ROOT

PACKAGE = ROOT / "aten_dump"
CAPTURE = PACKAGE / "capture"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_paths_are_files() -> None:
    """A path is told from the folder that the text is about."""
    paths = set(re.findall(r"`([\w/]+\.py)`", TEXT))
    assert len(paths) > 20, "the reading itself found nothing"
    known = [
        f"/{file.relative_to(ROOT).as_posix()}"
        for file in (*PACKAGE.rglob("*.py"), *ROOT.glob("*.py"), *(ROOT / "tests").rglob("*.py"))
    ]
    assert [path for path in paths if not any(file.endswith(f"/{path}") for file in known)] == []


def test_rooms_of_capture_know_only_those_above_them() -> None:
    table = TEXT.partition("## The rooms of capture")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([\w.]+)/?`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    order = {room.removesuffix(".py"): row for row, rooms in enumerate(rows) for room in rooms}
    folders = {folder.name for folder in CAPTURE.iterdir() if (folder / "__init__.py").is_file()}
    assert folders <= set(order), "a room without a line"
    wrong = [
        (path, target)
        for path, targets in structure.import_graph(PACKAGE).items()
        for target in targets
        if (here := order.get(_room(path))) is not None
        and (there := order.get(_room(target))) is not None
        and there > here
    ]
    assert wrong == []


def _room(path: str) -> str:
    layer, _, rest = path.partition("/")
    return rest.partition("/")[0].removesuffix(".py") if layer == "capture" else ""
