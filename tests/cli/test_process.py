"""The command as a process: pipes, encodings, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aten_dump import __version__
from aten_dump.cli.main import COMMANDS
from tests.checkout import ROOT
from tests.dump.building import Builder, value
from tests.dump.scenario import linear_step


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "aten_dump", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
def test_output_in_a_pipe_is_plain_and_whole(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "dump")
    long = "transformer." + ".".join(f"layer{i}" for i in range(60))
    builder.call(builder.op("module", "M", "Module", long), outputs=value(builder.value(torch.zeros(2))))
    root = builder.finish()
    for command in (["show"], ["stats"]):
        process = start(*command, root, env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "80"})
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert f"Module.{long}.0.forward" in out.decode("ascii")
        assert b"\x1b" not in out


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "dump")
    op, x = builder.op("aten", "aten::exp", "Aten", "exp"), value(builder.value(torch.zeros(2)))
    for n in range(20_000):
        builder.call(op, n=n, args=[x], outputs=x)
    process = start("show", builder.finish())
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"step 0, rank 0 of ")
    assert process.stdout.readline().startswith(b"Aten.exp.0.forward")
    process.stdout.close()
    assert process.wait(timeout=60) == 2  # could not be shown; never 1, which "differ" has
    assert process.stderr.read() == b""


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_could_not_be_shown(tmp_path: Path) -> None:
    root = linear_step(tmp_path / "dump").builder.finish()
    named = b"cannot write /dev/full: No space left on device; name another --output"
    for command, said in (
        (["ls", root], b"[Errno 28] No space left on device"),
        (["stats", root, "--format", "csv", "--output", "/dev/full"], named),
    ):
        with open("/dev/full", "wb") as full:
            process = subprocess.run(
                [sys.executable, "-m", "aten_dump", *map(str, command)], cwd=ROOT, stdout=full, stderr=subprocess.PIPE
            )
        assert (process.returncode, process.stderr) == (2, b"Error: %s\n" % said)


def test_a_failure_of_the_tool_itself_is_3_with_its_traceback(tmp_path: Path) -> None:
    root = linear_step(tmp_path / "dump").builder.finish()
    (tmp_path / "pyarrow.py").write_text("raise RuntimeError('built for another interpreter')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    to = ["--format", "parquet", "--output", tmp_path / "rows.parquet"]
    process = start("compare", root, root, *to, env=environment)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert err.decode().startswith("Traceback") and "RuntimeError: built for another interpreter" in err.decode()


@pytest.mark.parametrize(("arguments", "code"), [(["ls", "/nowhere"], 2), (["--help"], 0), (["--version"], 0)])
def test_exit_codes(arguments: list[str], code: int) -> None:
    process = start(*arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err


_INTERRUPTED = """
import json, os, signal, sys
from click.testing import CliRunner
from aten_dump.cli.commands import env  # with torch
from aten_dump.cli.main import main

mark = None

def look(event, arguments):
    global mark
    if event == "open" and mark is not None and mark in str(arguments[0]):
        mark = None
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(look)
for mark, *arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(main, arguments)
    print(arguments[0], result.exit_code, json.dumps(result.stderr))
"""


def test_ctrl_c_ends_every_command_with_130_and_one_line(tmp_path: Path) -> None:
    dump = str(linear_step(tmp_path / "dump").builder.finish())
    config = tmp_path / "dump.toml"
    config.write_text('path = "dump"\n')
    calls = {
        "env": ["METADATA", "env"],  # of the packages that it names
        "run": ["dump.toml", "run", "--config", str(config), "--", "true"],
        "config": ["dump.toml", "config", "check", str(config)],
        "compare": ["index.msgpack", "compare", dump, dump],
        "weights": ["index.msgpack", "weights", dump, dump],
        "export": ["index.msgpack", "export", dump, "--to", "npy", "--out", str(tmp_path / "npy")],
        "report": ["index.msgpack", "report", dump, "--output", str(tmp_path / "dump.html")],
    }
    (tmp_path / "dump" / "run.json").write_text("{}")
    calls["ctl"] = ["run.json", "ctl", dump, "status"]
    calls |= {name: ["index.msgpack", name, dump] for name in COMMANDS if name not in calls and name != "serve"}
    command = [sys.executable, "-c", _INTERRUPTED, json.dumps(list(calls.values()))]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f'{name} 130 "Interrupted.\\n"' for name in calls]


def test_version_says_whether_the_recorder_is_compiled() -> None:
    from aten_dump.capture.calls import ops

    process = start("--version")
    out, _ = process.communicate(timeout=60)
    build = "pure Python" if str(ops.__file__).endswith(".py") else "compiled"
    assert out.decode().strip() == f"aten-dump, version {__version__} ({build})"


def test_help_does_not_import_torch() -> None:
    script = (
        "import sys; from aten_dump.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
