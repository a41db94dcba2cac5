"""nonfinite: exit code 1 where something made NaN, and where to look."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from aten_dump import DumpConfig, DumpMode, MissingDataError
from aten_dump.cli.commands.nonfinite import command
from tests.cli.commands.tiny import record


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("sick") / "dump", nan=True, steps=2, data="statistic")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_a_clean_dump_is_fine(tmp_path: Path) -> None:
    result = run(record(tmp_path / "dump"))
    assert result.exit_code == 0 and "made a NaN or Inf that was not a mask" in result.stdout


def test_what_made_nan_is_named_first(sick: Path) -> None:
    result = run(sick, "--step", "0")
    assert result.exit_code == 1
    assert (
        result.stdout.splitlines()[0].startswith("first in ") and "Aten.log.0.forward" in result.stdout.splitlines()[0]
    )
    assert "Aten.sum.0.forward" not in result.stdout, "it passed it on"
    assert "Aten.sum.0.forward" in run(sick, "--step", "0", "--all").stdout


def test_several_steps_end_with_where_it_began(sick: Path) -> None:
    lines = run(sick).stdout.splitlines()
    assert lines[-3].startswith("it began in step 0, rank 0: Aten.log.0.forward")
    assert lines[-2] == "all 2 step/rank folders have NaN or Inf"
    assert lines[-1] == f"Next: aten-dump show {sick} Aten.log.0.forward --step 0 --rank 0"
    assert not run(sick, "--step", "1").stdout.startswith("it began")


def test_of_many_ranks_the_first_is_told_whole_and_those_alike_in_a_line(sick: Path, tmp_path: Path) -> None:
    """A thousand ranks that have NaN from one all-reduce are not a thousand tables; where it began is told whole."""
    made, given = sick / "step0" / "rank0", tmp_path / "given" / "step0" / "rank0"
    received = torch.full((3,), math.nan)
    with DumpMode(DumpConfig(tmp_path / "given", data="statistic", level="aten")):
        received.add(1)
    for rank in range(12):
        shutil.copytree(made if rank == 10 else given, tmp_path / "dump" / "step0" / f"rank{rank}")
    out = run(tmp_path / "dump").stdout
    whole = [line for line in out.splitlines() if line.startswith("first in ")]
    assert len(whole) == 1 and whole == out.splitlines()[:1] and "(step 0, rank 10): Aten.log.0" in whole[0]
    assert "step 0 ranks 0-9|11: first in Aten." in out
    assert out.splitlines()[-3].startswith("it began in step 0, rank 10: Aten.log")


def test_the_limit_is_of_rows(sick: Path) -> None:
    result = run(sick, "--step", "0", "--all", "--limit", "1")
    assert "more rows; --limit 0 prints all" in result.stderr


def test_near_overflow_is_a_share(tmp_path: Path) -> None:
    path = record(tmp_path / "dump")
    assert run(path, "--near", "1").exit_code == 0
    assert run(path, "--near", "0").exit_code == 2
    assert "near overflow" in run(path, "--near", "1e-38").stdout


def test_what_cannot_be_searched_says_why(tmp_path: Path, sick: Path) -> None:
    result = run(record(tmp_path / "dump", data="structure"))
    assert isinstance(result.exception, MissingDataError)
    assert isinstance(run(sick, "--step", "9").exception, MissingDataError)
