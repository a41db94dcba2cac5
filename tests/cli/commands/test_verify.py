"""verify: exit code 1 where a byte is wrong, with where."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump.cli.commands.verify import command
from tests.cli.commands.tiny import record, spoil


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_a_whole_dump_has_no_problems(tmp_path: Path) -> None:
    result = run(record(tmp_path / "dump", steps=2))
    assert (result.exit_code, result.stdout) == (0, "2 step/rank folders checked, 0 problems\n")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])  # in `make test`: test_damaged_dumps.py
def test_a_wrong_byte_is_told_with_its_place(tmp_path: Path, jobs: int) -> None:
    record(tmp_path / "dump", steps=2)
    spoil(tmp_path / "dump", step=1)
    result = run(tmp_path / "dump", "--jobs", jobs)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith("step 1 rank 0: ")
    assert lines[1] == "2 step/rank folders checked, 1 problems"


def test_a_step_that_should_be_there_is_a_problem_of_the_dump(tmp_path: Path) -> None:
    import shutil

    record(tmp_path / "dump", steps=2)
    shutil.rmtree(tmp_path / "dump" / "step1")
    result = run(tmp_path / "dump")
    assert result.exit_code == 1 and "step" in result.stdout.splitlines()[0]
    assert result.stdout.splitlines()[-1] == "1 step/rank folders checked, 1 problems"
