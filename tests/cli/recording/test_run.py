"""``aten-dump run`` as a process: it becomes the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aten_dump.cli.recording import run
from tests.checkout import ROOT

SHOW = "import os, sys; print(os.getpid()); print(sys.argv[1:]); print(os.environ['ATEN_DUMP_RUN'])"


def start(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "aten_dump", "run", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def config_of(*options: object, **variables: str) -> dict[str, object]:
    out, _ = start(*options, "--", sys.executable, "-c", SHOW, **variables).communicate(timeout=60)
    found: dict[str, object] = json.loads(out.splitlines()[2])
    return found


def test_the_command_takes_the_place_of_this_process_with_all_of_its_arguments() -> None:
    process = start("--steps", "0-1", "--", sys.executable, "-c", SHOW, "--help", "--path", "x", "--")
    out, err = process.communicate(timeout=60)
    pid, arguments, _ = out.splitlines()
    assert int(pid) == process.pid
    assert arguments == "['--help', '--path', 'x', '--']"
    assert (err, process.returncode) == ("", 0)


def test_a_signal_that_ends_the_command_is_told_as_ever() -> None:
    process = start("--", sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    process.communicate(timeout=60)
    assert process.returncode == -15


def test_options_change_what_the_config_says(tmp_path: Path) -> None:
    file = tmp_path / "cfg.toml"
    file.write_text('path = "there"\ndata = "full"\nsteps = "4"\n')
    found = config_of("--config", file, "--steps", "5-6", "--overwrite")
    assert (found["path"], found["data"], found["steps"]) == (str(ROOT / "there"), "full", "5-6")
    assert found["overwrite"] is True
    assert config_of(ATEN_DUMP_CONFIG=str(file))["steps"] == "4"
    assert [config_of("--compile", how)["compile"] for how in ("eager", "opaque", "kernels")] == [
        "eager",
        "opaque",
        "kernels",
    ]
    assert config_of()["path"] == str(ROOT / run._DEFAULT_PATH)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--steps", "8-5", "--", "python"], "ranges that go up"),
        (["--", "no-such-command"], "there is no command 'no-such-command' to run\n"),
        (["--", "examples/quickstart.py"], "did you mean: python examples/quickstart.py"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_runs(arguments: list[str], text: str) -> None:
    process = start(*arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert text in err


NOTHING = "import torch; x = torch.ones(3, requires_grad=True); (x * 2).sum().backward()"
MODULE = "import torch; torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()"
IN_A_CHILD = f"import subprocess, sys, torch; subprocess.run([sys.executable, '-c', {MODULE!r}], check=True)"


def test_a_program_that_records_itself_is_not_said_to_record_nothing(tmp_path: Path) -> None:
    config = f"DumpConfig(path={str(tmp_path / 'own')!r})"
    own = f"from aten_dump import DumpConfig, DumpMode\nwith DumpMode({config}):\n    exec({MODULE!r})"
    process = start("--path", tmp_path / "dump", "--", sys.executable, "-c", own)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and (tmp_path / "own").is_dir(), err
    assert "nothing was recorded" not in err and not (tmp_path / "dump").exists(), err


@pytest.mark.parametrize(("program", "says"), [(NOTHING, True), (MODULE, False), (IN_A_CHILD, False)])
def test_a_program_of_which_nothing_was_recorded_is_said_to_be_one(program: str, says: bool, tmp_path: Path) -> None:
    """It ends as it would: what is said is on stderr, and where a child recorded there is nothing to say."""
    process = start("--path", tmp_path / "dump", "--", sys.executable, "-c", program)
    out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == ("", 0), err
    assert ("nothing was recorded in" in err and "`with DumpMode" in err) == says, err
    assert (tmp_path / "dump").exists() != says
