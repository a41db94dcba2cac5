"""``aten-dump report``: what it writes, and what it says where it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from aten_dump import DumpConfig, DumpMode
from aten_dump.cli.main import main
from aten_dump.dump.index import source
from aten_dump.report.html.payload import sections
from aten_dump.store.index_reader import read_index
from tests.browser import dumps
from tests.report.sections_read import sections_of


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumps.trained(tmp_path_factory.mktemp("trained"))


def shown(page: Path) -> list[int]:
    step_ranks = sections_of(page)["outline"].json["sides"]["target"]["step_ranks"]
    assert [one["step"] for one in step_ranks] == [0, 1, 2]
    return [one["step"] for one in step_ranks if one["shown"]]


def test_all_steps_are_shown_and_the_file_is_named(trained: Path, tmp_path: Path) -> None:
    result = report(trained, "-o", tmp_path / "all.html")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "all.html") in result.output
    assert shown(tmp_path / "all.html") == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["all.html"]


def test_steps_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    report(trained, "-o", tmp_path / "one.html", "--step", 1)
    assert shown(tmp_path / "one.html") == [1]


def test_steps_beyond_the_most_calls_are_only_summed_up(trained: Path, tmp_path: Path) -> None:
    report(trained, "-o", tmp_path / "few.html", "--max-calls", 800)
    assert shown(tmp_path / "few.html") == [0, 1]
    report(trained, "-o", tmp_path / "least.html", "--max-calls", 1)
    assert shown(tmp_path / "least.html") == [0]


def test_of_many_steps_the_first_with_nan_is_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", data="statistic")) as dump:
        for number in (1.0, -1.0, -2.0):
            torch.full((2,), number).sqrt().sum()
            dump.step()
    monkeypatch.setattr(sections, "_MOST_SHOWN", 1)
    report(tmp_path / "dump", "-o", tmp_path / "nan.html")
    assert shown(tmp_path / "nan.html") == [0, 1]


def test_each_index_is_read_once(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(source, "read_index", lambda path: read.append(path.parent.name) or read_index(path))
    assert report(trained, "-o", tmp_path / "all.html").exit_code == 0
    assert read == ["step0", "step1", "step2"]


@pytest.mark.parametrize("content", [None, b"nothing of ours"])
def test_what_lacks_is_said_before_the_file(trained: Path, tmp_path: Path, content: bytes | None) -> None:
    dump = shutil.copytree(trained, tmp_path / "dump")
    index = dump / "step1" / "rank0" / "index.msgpack"
    index.write_bytes(index.read_bytes()[:-10] if content is None else content)
    lines = report(dump, "-o", tmp_path / "page.html").stdout.splitlines()
    assert "step 1 rank 0" in lines[0]
    assert [line for line in lines if line.startswith("wrote")] == lines[1 : 2 if content is None else 1]


def test_a_nan_is_in_the_answer(tmp_path: Path) -> None:
    report(dumps.not_a_number(tmp_path), "-o", tmp_path / "nan.html")
    (one,) = sections_of(tmp_path / "nan.html")["outline"].json["sides"]["target"]["step_ranks"]
    assert one["nonfinite"]["first"]["call"] == "Aten.log.0.forward"
    assert one["nonfinite"]["first"]["why"] == "a logarithm of zero or less: 0"


@pytest.mark.parametrize("name", ["empty", "interrupted", "structure"])
def test_what_lacks_is_said(name: str, tmp_path: Path) -> None:
    result = report(dumps.RECORDERS[name](tmp_path), "-o", tmp_path / "page.html")
    assert result.exit_code == (2 if name == "interrupted" else 0), result.output
    outline = sections_of(tmp_path / "page.html")["outline"].json
    step_ranks = outline["sides"]["target"]["step_ranks"]
    if name == "interrupted":
        assert step_ranks[0]["missing"] and step_ranks[0]["state"] == "interrupted"
    if name == "structure":
        assert "structure" in step_ranks[0]["nonfinite"]["unknown"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(trained: Path, tmp_path: Path) -> None:
    result = report(trained, "-o", tmp_path / "no" / "page.html")
    assert result.exit_code == 2
    assert "cannot write" in result.output and "--output" in result.output
    old = tmp_path / "old.html"
    old.write_text("old")
    result = report(tmp_path / "missing", "-o", old)
    assert result.exit_code == 2
    assert old.read_text() == "old"
