"""Lines of code are read out of one folder, whatever file a dump names."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump.export.formats.to_graph import SourceLines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("first\n    second = 2  \n")
    (folder / "secret.txt").write_text("password\n")
    (tmp_path / "outside.py").write_text("outside\n")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    return folder.resolve()


def test_a_line_is_told_without_its_indentation(root: Path) -> None:
    lines = SourceLines(root)
    file = str(root / "train.py")
    assert [lines.line(file, n) for n in (-1, 0, 1, 2, 3)] == ["", "", "first", "second = 2", ""]


def test_only_python_beneath_the_folder_is_read(root: Path) -> None:
    lines = SourceLines(root)
    for file in (
        root / "secret.txt",
        root.parent / "outside.py",
        root / ".." / "outside.py",
        root / "link.py",
        root / "no.py",
    ):
        assert lines.line(str(file), 1) == "", file
    assert lines.line(str(root / ".." / "code" / "train.py"), 1) == "first"


def test_without_a_folder_nothing_is_read(root: Path) -> None:
    assert SourceLines(None).line(str(root / "train.py"), 1) == ""


def test_a_file_is_read_once(root: Path) -> None:
    lines, file = SourceLines(root), root / "train.py"
    assert lines.line(str(file), 1) == "first"
    file.write_text("changed\n")
    assert lines.line(str(file), 1) == "first"


def test_bytes_that_are_no_text_are_no_error(root: Path) -> None:
    (root / "odd.py").write_bytes(b"x = '\xff'\n")
    assert SourceLines(root).line(str(root / "odd.py"), 1).startswith("x = '")
