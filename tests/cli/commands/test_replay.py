"""replay: which op is off, exit codes, a script of one op."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aten_dump import ConfigError, ReplayError, StoreError
from aten_dump.cli.commands.replay import command
from tests import forked
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
    assert "has a larger error than a correct implementation" in result.stdout and "Aten.mm.0.forward" in result.stdout


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


def test_all_steps_and_ranks_are_one_answer(honest: Path, wrong: Path, tmp_path: Path) -> None:
    result = run(honest, "--all")
    assert result.exit_code == 0 and "ops of 2 steps and ranks replayed on cpu" in result.stdout
    for rank in range(40):
        shutil.copytree((wrong if rank == 30 else honest) / "step0" / "rank0", tmp_path / "step0" / f"rank{rank}")
    lines = run(tmp_path, "--all").stdout.splitlines()
    assert "first suspect in" in lines[0] and "(step 0, rank 30)" in lines[0]
    assert "step 0 ranks 0-29|31-39: no op has a larger error than a correct implementation" in lines
    assert len(lines) < 10, "of a thousand ranks those alike are one line"


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
    done = forked.run(["-c", (tmp_path / "repro.py").read_text()], tmp_path / "said")
    assert done.code == 0, done.said
    assert isinstance(run(honest, "Aten.mm.0.forward", "--emit", tmp_path / "gone" / "r.py").exception, StoreError)


def test_the_limit_is_of_rows(honest: Path) -> None:
    result = run(honest, "--limit", "1")
    assert "more rows; --limit 0 prints all" in result.stderr
    assert "more rows" not in run(honest, "--limit", "0").stderr


_LIBRARY = """
import torch

@torch.library.custom_op("aten_dump_imported::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2
"""
_PROGRAM = """
import sys, torch, halves
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(sys.argv[1], data="tensor")) as dump:
    for _ in range(2):
        torch.ops.aten_dump_imported.half(torch.ones(3)).exp()
        dump.step()
"""


@pytest.fixture(scope="module")
def of_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "halves.py").write_text(_LIBRARY)
    (folder / "program.py").write_text(_PROGRAM)
    subprocess.run([sys.executable, "program.py", "dump"], cwd=folder, env=_environment(), check=True, timeout=100)
    return folder


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def aten_dump(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as its script does: what lies in the working directory is not on the path."""
    command = [sys.executable, "-c", "import sys; sys.path.remove(''); from aten_dump.cli.main import main; main()"]
    given = [*command, *arguments, "--allow-ops", "aten_dump_imported::*"]
    return subprocess.run(
        given, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.slow
def test_a_module_brings_its_ops_here_and_to_workers(of_library: Path) -> None:
    without = aten_dump(of_library, "replay", "dump")
    assert "import the module that registers it (on the command line: --import MODULE)" in without.stdout
    done = aten_dump(of_library, "replay", "dump", "--import", "halves")
    assert done.returncode == 0 and "Custom.half.0.forward" in done.stdout, done.stderr
    done = aten_dump(of_library, "replay", "dump", "--import", "./halves.py", "--all", "--jobs", "2")
    assert done.returncode == 0 and "of 2 steps and ranks" in done.stdout, done.stdout
    assert ", 0 not replayed" in done.stdout
    done = aten_dump(of_library, "compare", "dump", "dump", "--import", "halves")
    assert done.returncode == 0 and "proven for 3 of 3 calls" in done.stdout, done.stdout


def test_a_module_that_cannot_be_imported_is_told(honest: Path) -> None:
    result = run(honest, "--import", "no_such_module")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "--import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"


def test_a_module_that_exits_does_not_end_the_command_well(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit(0)\n")
    result = run(honest, "--import", str(tmp_path / "script.py"))
    assert isinstance(result.exception, ConfigError)
    assert "script.py: SystemExit: 0" in str(result.exception)
