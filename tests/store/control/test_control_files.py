"""Messages are read as they were written, whole or not at all, and whatever lies there instead is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.store.control.control_files import Answer, ControlFiles, Decision, Request

MESSAGES = [
    Request(3, 17),
    Request(4, 18, steps="0|5-8", level="api"),
    Decision(4, 107, (2, 3)),
    Answer(1, 4, 105, "all", "mix", done=True, error="why"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_written_is_read(tmp_path: Path, message: Request | Answer | Decision) -> None:
    files = ControlFiles(tmp_path)
    assert (files.request(), files.answer(1), files.decision()) == (None, None, None)
    files.write(message)
    files.write(message)
    found = {Request: files.request(), Decision: files.decision(), Answer: files.answer(1)}
    assert found.pop(type(message)) == message
    assert set(found.values()) == {None}
    assert files.answer(2) is None
    assert len(os.listdir(tmp_path / "control")) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", '{"number": "1", "made_unix_ns": 2}', '{"number": 1}',
     '{"number": 1, "made_unix_ns": 2, "steps": 3}', '{"number": true, "made_unix_ns": 2}', "[" * 5000, "\xff"],
)  # fmt: skip
def test_what_makes_no_sense_is_no_message(tmp_path: Path, text: str) -> None:
    files = ControlFiles(tmp_path)
    (tmp_path / "control").mkdir()
    Path(files.request_path).write_text(text, encoding="latin-1")
    assert files.request() is None


def test_fields_of_a_later_version_are_ignored_and_a_link_is_not_followed(tmp_path: Path) -> None:
    files = ControlFiles(tmp_path)
    (tmp_path / "control").mkdir()
    (tmp_path / "elsewhere").write_text('{"number": 1, "made_unix_ns": 2, "later": [1]}')
    Path(files.request_path).symlink_to(tmp_path / "elsewhere")
    assert files.request() is None
    os.replace(tmp_path / "elsewhere", files.request_path)
    assert files.request() == Request(1, 2)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("a file")
    with pytest.raises(StoreError, match="the run cannot be switched from outside"):
        ControlFiles(tmp_path).write(Request(1, 2))
