"""report: a file that says it was written, of one dump or two."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump import AtenDumpError, MissingDataError
from aten_dump.cli.commands.pages.report import command
from tests.cli.commands.tiny import record
from tests.report.sections_read import sections_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_one_dump(tmp_path: Path) -> None:
    result = run(record(tmp_path / "dump", steps=2), "-o", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"wrote {tmp_path / 'r.html'} (") and "open it in a browser" in result.stdout
    sections = sections_of(tmp_path / "r.html")
    assert sections["outline"].json["comparison"] is None
    assert {"target/0/0/tree", "target/1/0/tree"} <= set(sections)


def test_two_are_compared(tmp_path: Path) -> None:
    record(tmp_path / "a"), record(tmp_path / "b")
    assert run(tmp_path / "a", tmp_path / "b", "-o", tmp_path / "r.html").exit_code == 0
    sections = sections_of(tmp_path / "r.html")
    assert sections["outline"].json["comparison"]["verdict"] == "same"
    assert {"target/0/0/judged", "baseline/0/0/judged"} <= set(sections)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--step", "1"], {1}),
        (["--step", "0", "--step", "2"], {0, 2}),
        (["--rank", "0"], {0, 1, 2}),
        (["--max-calls", "1"], {0}),
    ],
)
def test_steps_to_show_call_by_call(tmp_path: Path, options: list[str], shown: set[int]) -> None:
    run(record(tmp_path / "dump", steps=3), "-o", tmp_path / "r.html", *options)
    sections = sections_of(tmp_path / "r.html")
    assert {int(name.split("/")[1]) for name in sections if name.endswith("/tree")} == shown
    assert len(sections["outline"].json["sides"]["target"]["step_ranks"]) == 3, "the others are summed up"


def test_a_dump_that_is_not_there_is_an_error_and_no_file(tmp_path: Path) -> None:
    result = run(tmp_path / "nowhere", "-o", tmp_path / "r.html")
    assert isinstance(result.exception, AtenDumpError), result.exception
    assert not (tmp_path / "r.html").exists()
    assert run(tmp_path / "nowhere", "--max-calls", "0").exit_code == 2


@pytest.mark.parametrize("option", ["--step", "--rank"])
def test_what_was_not_recorded_is_not_shown(tmp_path: Path, option: str) -> None:
    result = run(record(tmp_path / "dump", steps=2), "-o", tmp_path / "r.html", option, "9")
    assert isinstance(result.exception, MissingDataError) and " 9 is not in " in str(result.exception)
    assert not (tmp_path / "r.html").exists()
