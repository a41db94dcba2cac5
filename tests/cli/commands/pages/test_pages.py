"""`report` and `serve` as commands: what they say when something is missing, taken or wrong."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aten_dump.cli.commands.pages import report, serve
from aten_dump.cli.main import main
from aten_dump.report.serve.local_server import listen
from tests.dump.scenario import linear_step
from tests.forked import run


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return linear_step(tmp_path / "dump").builder.finish()


def test_both_take_a_dump_and_a_baseline() -> None:
    for command in (report.command, serve.command):
        names = [parameter.name for parameter in command.params if isinstance(parameter, click.Argument)]
        assert names == ["dump", "baseline"]


def test_no_option_lets_others_reach_the_server() -> None:
    assert {parameter.name for parameter in serve.command.params} == {
        "dump",
        "baseline",
        "port",
        "form",
        "jobs",
        "scheduler",
    }


def test_a_taken_port_is_exit_code_2(dump: Path) -> None:
    with listen(0) as door:
        result = CliRunner().invoke(main, ["serve", str(dump), "--port", str(door.getsockname()[1])])
    assert result.exit_code == 2 and "take another --port" in result.output


def test_no_dump_is_exit_code_2(tmp_path: Path) -> None:
    for command in ("report", "serve"):
        result = CliRunner().invoke(main, [command, str(tmp_path / "none")])
        assert result.exit_code == 2 and "does not exist" in result.output


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_the_extra_is_named_where_it_is_missing(package: str, dump: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.modules['{package}'] = None; from aten_dump.cli.main import main; main(['serve', {str(dump)!r}])"
    ended = run(["-c", code], tmp_path / "said")
    assert ended.code == 2
    assert "pip install 'aten-dump[serve]'" in ended.said
