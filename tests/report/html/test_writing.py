"""A report is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import StoreError, open_dump
from aten_dump.report.html.document import write_report
from aten_dump.report.html.payload.sections import Subject
from tests.export.made import small_step
from tests.report.sections_read import sections_of


def test_the_file_holds_every_section_and_its_size_is_told(tmp_path: Path) -> None:
    dump = open_dump(small_step(tmp_path / "dump"))
    size = write_report(Subject(dump, "1.2"), tmp_path / "report.html")
    assert size == (tmp_path / "report.html").stat().st_size
    sections = sections_of(tmp_path / "report.html")
    assert sections["outline"].json["version"] == "1.2" and "target/0/0/tree" in sections
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "report.html"]


def test_a_report_that_fails_in_the_midst_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "report.html").write_text("old")
    subject = Subject(open_dump(small_step(tmp_path / "dump")), "1", progress=stop)
    with pytest.raises(KeyboardInterrupt):
        write_report(subject, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "report.html"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    subject = Subject(open_dump(small_step(tmp_path / "dump")), "1")
    with pytest.raises(StoreError, match=r"cannot write .*gone/report\.html: No such file.*--output"):
        write_report(subject, tmp_path / "gone" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        write_report(subject, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
