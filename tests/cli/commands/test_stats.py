"""stats: a row for each value of each call; a table, CSV or JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump.cli.commands.stats import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_the_table_has_the_recorded_statistics(dump: Path) -> None:
    lines = [line.split() for line in run(dump, "--op", "aten::t").stdout.splitlines()[1:]]
    assert lines[0][:6] == ["call", "slot", "tensor", "count", "min", "max"]
    assert lines[1] == ["Aten.t.0.forward", "input.0", "f32[3,", "4]", *lines[1][4:]] and lines[1][4:7] == [
        "12",
        "-1.5",
        "2.5",
    ]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_are_written_or_shown(dump: Path, tmp_path: Path, form: str) -> None:
    shown = run(dump, "--kind", "aten", "--format", form)
    assert shown.exit_code == 0
    written = run(dump, "--kind", "aten", "--format", form, "--output", tmp_path / "rows")
    assert written.stdout == "" and (tmp_path / "rows").read_text() == shown.stdout
    rows = json.loads(shown.stdout) if form == "json" else list(csv.DictReader(shown.stdout.splitlines()))
    assert {row["call"] for row in rows} == {f"Aten.{name}" for name in (
        "t.0.forward", "addmm.0.forward", "relu_.0.forward", "mm.0.backward", "_foreach_add_.0.optimizer",
    )}  # fmt: skip


def test_the_limit_is_of_rows(dump: Path) -> None:
    assert len(json.loads(run(dump, "--format", "json", "--limit", "2").stdout)) == 2
    every = json.loads(run(dump, "--format", "json", "--limit", "0").stdout)
    assert len(every) > 20
    table = run(dump, "--limit", "2")
    assert len(table.stdout.splitlines()) == 4 and f"... {len(every) - 2} more rows" in table.stderr


def test_a_table_goes_to_no_file(dump: Path, tmp_path: Path) -> None:
    result = run(dump, "--output", tmp_path / "rows")
    assert result.exit_code == 2 and "--format csv or json" in result.stderr and not (tmp_path / "rows").exists()


def test_filters_that_match_nothing_make_a_table_without_rows(dump: Path) -> None:
    result = run(dump, "--phase", "recompute")
    assert len(result.stdout.splitlines()) == 2 and "matches these filters; it has" in result.stderr
