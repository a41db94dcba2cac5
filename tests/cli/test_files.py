"""A file that a command writes has its name when it is whole."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from aten_dump.cli.files import opened
from aten_dump.errors import StoreError


def test_without_a_path_it_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with opened(None) as file:
        assert file is sys.stdout
        file.write("table\n")
    assert capsys.readouterr().out == "table\n" and not sys.stdout.closed


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")
    with opened(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["rows.csv"]


def test_an_error_in_the_midst_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")

    def fails() -> None:
        with opened(path) as file:
            file.write("new")
            raise KeyError("of the command")

    with pytest.raises(KeyError):
        fails()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["rows.csv"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match=r"cannot write .*rows\.csv: No such file.*--output"),
        opened(tmp_path / "gone" / "rows.csv"),
    ):
        pass


def test_an_error_of_a_store_keeps_its_words(tmp_path: Path) -> None:
    def fails() -> None:
        with opened(tmp_path / "rows.csv"):
            raise StoreError("a shard is gone")

    with pytest.raises(StoreError, match=r"^a shard is gone$"):
        fails()


def test_bytes_of_a_path_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    with opened(tmp_path / "rows.csv") as file:
        file.write("a\udcffb\n")
    assert (tmp_path / "rows.csv").read_bytes() == b"a\\udcffb\n"


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    with opened(path) as file:
        file.write("rows")
    reader.join(20)
    assert read == ["rows"] and path.is_fifo()
