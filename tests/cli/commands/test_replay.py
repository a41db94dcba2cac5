"""replay: which op is off, exit codes, a script of one op."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump import ReplayError, StoreError
from aten_dump.cli.commands.replay import command
from tests.checkout import ROOT
from tests.cli.commands.tiny import record
from tests.dump.building import Builder, value


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("honest") / "dump", steps=2)


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A dump whose exp is 1% off."""
    import torch

    b = Builder(tmp_path / "dump")
    x = torch.linspace(0, 1, 64)
    b.call(
        b.op("aten", "aten::exp", "Aten", "exp", ("self",)),
        args=[value(b.value(x))],
        outputs=value(b.value(x.exp() * 1.01)),
    )
    return b.finish()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_an_honest_dump_is_fine(honest: Path) -> None:
    result = run(honest)
    assert result.exit_code == 0, result.output
    assert "is further off than an honest implementation is" in result.stdout and "Aten.mm.0.forward" in result.stdout


def test_an_op_that_is_off_is_the_first_suspect(wrong: Path) -> None:
    result = run(wrong)
    assert result.exit_code == 1 and result.stdout.startswith("Aten.exp.0.forward (aten::exp) is the first suspect")


def test_bits_tell_what_is_reproduced(honest: Path, wrong: Path) -> None:
    assert run(honest, "--dtype", "recorded").exit_code == 0
    assert run(wrong, "--dtype", "recorded").exit_code == 1


def test_one_call_or_those_in_it(honest: Path, tmp_path: Path) -> None:
    result = run(honest, "Aten.mm.0.forward")
    assert result.exit_code == 0 and "1 ops replayed" in result.stdout
    outer = record(tmp_path / "mix", level="mix")
    assert "1 ops replayed" in run(outer, "Torch.mm.0.forward").stdout


def test_where_nothing_can_be_replayed_it_could_not(tmp_path: Path) -> None:
    b = Builder(tmp_path / "empty")
    b.call(b.op("aten", "aten::exp", "Aten", "exp", ("self",)), args=[3])
    assert run(b.finish()).exit_code == 2


def test_a_random_op_draws_again_from_the_recorded_state(honest: Path) -> None:
    result = run(honest, "Aten.randn.0.forward")
    assert result.exit_code == 0 and "1 bit-equal in the recorded dtype (1 of all drew random numbers)" in result.stdout


def test_all_steps_one_after_the_other(honest: Path) -> None:
    result = run(honest, "--all")
    assert result.exit_code == 0 and result.stdout.count("ops replayed on cpu") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--all", "--step", "0"], "--all takes all steps"),
        (["Aten.mm.0.forward", "--all"], "--all takes all steps"),
        (["--jobs", "2"], "give --all"),
        (["--emit", "repro.py"], "--emit needs the NAME"),
        (["--dtype", "float16"], "recorded"),
    ],
)
def test_what_does_not_go_together_is_said(honest: Path, options: list[str], words: str) -> None:
    result = run(honest, *options)
    assert result.exit_code == 2 and words in result.stderr


def test_a_device_that_is_none_is_an_error(honest: Path) -> None:
    result = run(honest, "--device", "toaster")
    assert isinstance(result.exception, ReplayError) and "'toaster'" in str(result.exception)


def test_a_script_runs_one_op_alone(honest: Path, tmp_path: Path) -> None:
    result = run(honest, "Aten.mm.0.forward", "--emit", tmp_path / "repro.py")
    assert result.exit_code == 0 and "repro.py" in result.stdout
    done = subprocess.run(
        [sys.executable, tmp_path / "repro.py"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(run(honest, "Aten.mm.0.forward", "--emit", tmp_path / "gone" / "r.py").exception, StoreError)


def test_the_limit_is_of_rows(honest: Path) -> None:
    result = run(honest, "--limit", "1")
    assert "more rows; --limit 0 prints all" in result.stderr
    assert "more rows" not in run(honest, "--limit", "0").stderr
