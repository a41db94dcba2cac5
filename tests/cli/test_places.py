"""Which step a command shows is in its first line, and every command that it tells to run next finds what it is about."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode
from aten_dump.cli import places
from aten_dump.cli.main import COMMANDS
from tests.cli.conftest import Run

DIV = "Aten.div.0.forward"


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 2 to 5: from 3 on a loss is divided, by zero in 4."""
    path = tmp_path_factory.mktemp("places") / "my dump"
    model = nn.Linear(4, 1)
    with DumpMode(DumpConfig(path=path, data="full", steps="2-5"), model=model) as dump:
        dump.step(2)
        for step in (2, 3, 4, 5):
            loss = model(torch.ones(2, 4)).square().mean()
            if step > 2:
                loss = loss.detach() / (0.0 if step == 4 else 2.0)
            dump.step()
    return path


@pytest.mark.parametrize("command", ["show", "stats", "saved", "replay", "replay --dtype recorded"])
@pytest.mark.parametrize("step", [None, 4])
def test_the_first_line_names_the_step(steps: Path, run: Run, command: str, step: int | None) -> None:
    name, *options = command.split()
    result = run(name, steps, *options, *([] if step is None else ["--step", step]))
    assert result.exit_code in (0, 1), result.output
    assert re.search(rf"\bstep {step or 2}\b", result.stdout.splitlines()[0]) and str(steps) in result.stdout
    assert "steps 2-5 recorded" in result.stdout


def test_files_for_programs_have_no_such_line(steps: Path, run: Run) -> None:
    assert run("stats", steps, "--format", "csv").stdout.startswith("step,rank,")
    assert run("stats", steps, "--format", "json").stdout.startswith('{"schema": 1, "rows": [\n{')


@pytest.mark.parametrize(
    ("command", "name"),
    [("show", "Aten.mean.0.forward"), ("show", "Aten.mean.0.forward.output.0"), ("replay", "Aten.mean.0.forward")],
)
def test_a_name_that_is_in_several_steps_says_so(steps: Path, run: Run, command: str, name: str) -> None:
    assert f"{name} is also in steps 3-5: add --step 3" in run(command, steps, name).stdout
    assert "is also in" not in run(command, steps, name, "--step", 4).stdout


@pytest.mark.parametrize("command", ["show", "replay"])
def test_a_name_of_another_step_says_which(steps: Path, run: Run, command: str) -> None:
    result = run(command, steps, DIV)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{DIV} is not in step 2 of {steps}, but in steps 3-5: add --step 3" in result.stderr


def test_what_takes_too_long_to_look_into_is_said(steps: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_SEARCHED_BYTES", (steps / "step3" / "rank0" / "index.msgpack").stat().st_size)
    said = run("show", steps, "Aten.mean.0.forward").stdout
    assert "Aten.mean.0.forward is also in step 3: add --step 3\n" in said
    assert "steps 4-5 may have Aten.mean.0.forward too: add --step 4\n" in said


def test_what_nonfinite_tells_to_run_next_shows_the_nan(steps: Path, run: Run) -> None:
    result = run("nonfinite", steps)
    assert result.exit_code == 1
    command = result.stdout.splitlines()[-1].removeprefix("Next: ")
    assert command == f"aten-dump show '{steps}' {DIV} --step 4 --rank 0"
    shown = run(*shlex.split(command)[1:])
    assert shown.exit_code == 0 and re.search(r"output\.0: .*\n.*posinf 1", shown.stdout), shown.output


def test_every_command_in_a_message_runs_and_names_the_step(steps: Path, run: Run) -> None:
    for arguments in (
        ["show", steps, "Aten.nothing.0.forward", "--step", 3],
        ["show", steps, "Aten.nothing.0.forward.output.0", "--step", 3],
        ["stats", steps, "--op", "nothing", "--step", 3],
        ["replay", steps, "--step", 3, "--emit", steps / "x.py"],
    ):
        (command,) = re.findall("`(aten-dump [^`]*)`", run(*arguments).output)
        assert command.endswith("--step 3 --rank 0")
        assert run(*shlex.split(command)[1:]).exit_code == 0, command


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_which_steps_are_read_without_the_option(steps: Path, run: Run, name: str, tmp_path: Path) -> None:
    text = " ".join(run(name, "--help").stdout.split())
    found = re.search(r"--step INTEGER [^\[-]*\[default: ([^\]]*)\]", text)
    if found is None:
        return
    said = run(name, steps).stdout
    if found[1] == "all":
        counts = "in 4 recorded step/rank folders" in said
        assert counts or ("(step 4, rank 0)" in said and "of 4 step/rank folders" in said)
    else:
        assert found[1] == "the first recorded" and re.search(r"\bstep 2\b", said.splitlines()[0])
