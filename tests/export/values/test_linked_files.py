"""One file for each name, the bytes of a value once, and names that a file system takes."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import torch

from aten_dump import Value, open_dump
from aten_dump.export.values.linked_files import MAPPING_FILE, TensorFiles
from tests.dump.building import Builder, value


class Files:
    """Files of a folder, and what was written rather than linked."""

    def __init__(self, path: Path) -> None:
        b = Builder(path / "dump")
        numbers = [b.value(torch.full((2,), float(i))) for i in range(2)]
        b.call(b.op("aten", "aten::add", "Aten", "add"), args=[value(n) for n in numbers])
        rank = open_dump(b.finish()).step(0).rank(0)
        self.values: list[Value] = list(rank["Aten.add.0.forward"].inputs[0])
        self.saved: list[str] = []
        self.files = TensorFiles(path / "out" / "deep", ".txt", self.save)
        self.folder = self.files.folder

    def save(self, value: Value, path: Path) -> None:
        self.saved.append(path.name)
        path.write_text(str(value.tensor().tolist()))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_value_under_two_names_is_written_once(files: Files) -> None:
    first, second = files.values
    assert [files.files.put(name, v) for name, v in (("a", first), ("b", second), ("c", first))] == [
        "a.txt", "b.txt", "c.txt",
    ]  # fmt: skip
    assert files.saved == ["a.txt", "b.txt"]
    assert (files.folder / "c.txt").samefile(files.folder / "a.txt")
    assert (files.folder / "b.txt").read_text() == "[1.0, 1.0]"


def test_where_no_link_can_be_made_the_bytes_are_written_again(files: Files) -> None:
    first = files.values[0]
    files.files.put("a", first)
    (files.folder / "a.txt").unlink()  # nothing to link to, as on a disk without links
    files.files.put("c", first)
    assert files.saved == ["a.txt", "c.txt"] and (files.folder / "c.txt").read_text() == "[0.0, 0.0]"


def test_a_name_with_a_slash_is_one_file(files: Files) -> None:
    assert files.files.put("Default/fc/x", files.values[0]) == "Default_fc_x.txt"
    assert os.listdir(files.folder) == ["Default_fc_x.txt"]


@pytest.mark.parametrize(("name", "fits"), [("x" * 251, True), ("x" * 252, False), ("ä" * 126, False)])
def test_names_are_as_long_as_a_file_system_takes_in_bytes(files: Files, name: str, fits: bool) -> None:
    found = files.files.put(name, files.values[0])
    assert (found == f"{name}.txt") is fits and len(found.encode()) <= 255 and found.endswith(".txt")
    assert (files.folder / found).exists()
    files.files.close()
    if fits:
        assert not (files.folder / MAPPING_FILE).exists()
    else:
        with open(files.folder / MAPPING_FILE, newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == [[found, f"{name}.txt"]]


def test_two_long_names_are_two_files(files: Files) -> None:
    names = {files.files.put("x" * 300 + end, files.values[0]) for end in "ab"}
    assert len(names) == 2


def test_names_that_would_be_one_file_are_two(files: Files) -> None:
    first, second = files.values
    assert files.files.put("a/b", first) == "a_b.txt"
    other = files.files.put("a_b", second)
    assert other != "a_b.txt" and files.files.put("a/b", first) == "a_b.txt"
    files.files.close()
    assert (files.folder / "a_b.txt").read_text() == "[0.0, 0.0]"
    assert (files.folder / other).read_text() == "[1.0, 1.0]"
    assert list(csv.reader((files.folder / MAPPING_FILE).read_text().splitlines())) == [[other, "a_b.txt"]]


def test_no_name_ends_before_its_end(files: Files) -> None:
    assert files.files.put("a\0b", files.values[0]) == "a_b.txt"
