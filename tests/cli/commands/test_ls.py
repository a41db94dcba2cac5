"""ls: what a dump holds, in detail where that is quick."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump import open_dump
from aten_dump.cli.commands import ls
from aten_dump.cli.commands.ls import command
from tests.cli.commands.tiny import record


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def cells(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize(("options", "detailed"), [([], True), (["--details"], True), (["--no-details"], False)])
def test_details_are_calls_by_kind_and_notes(dump: Path, options: list[str], detailed: bool) -> None:
    result = run(dump, *options)
    assert result.exit_code == 0
    head = next(row for row in cells(result) if row[:2] == ["step", "rank"])
    assert ("aten" in head) is detailed
    assert ("launched by hand" in result.stdout) is detailed


def test_of_large_indexes_the_details_come_when_asked(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ls, "_QUICK_INDEX_BYTES", 10)
    assert "aten" not in next(row for row in cells(run(dump)) if row[:2] == ["step", "rank"])
    assert "aten" in next(row for row in cells(run(dump, "--details")) if row[:2] == ["step", "rank"])


def test_an_interrupted_step_says_what_finishes_it(torn: Path, dump: Path) -> None:
    result = run(torn)
    assert result.exit_code == 0
    assert f"1 of 2 step/rank folders are interrupted; `aten-dump recover {torn}` finishes them" in result.stdout
    assert [row[2] for row in cells(result) if row[:1] == ["0"]] == ["complete", "interrupted"]
    assert "aten-dump recover" not in run(dump).stdout


def test_a_step_that_should_be_there_and_is_not_is_told(tmp_path: Path) -> None:
    shutil.rmtree(record(tmp_path / "dump", steps=2) / "step1")
    problems = open_dump(tmp_path / "dump").problems
    assert len(problems) == 1 and run(tmp_path / "dump").stdout.splitlines()[0].endswith(problems[0])
