"""``aten-dump ctl`` on a run of two real ranks, and what it says where nobody answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from aten_dump import open_dump
from aten_dump.cli.main import main
from aten_dump.cli.recording import ctl
from aten_dump.store.control.control_files import Answer, ControlFiles, Decision, Request
from tests.checkout import ROOT
from tests.launch.running import PYTHON, TORCHRUN, environment


def aten_dump(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def wait_for(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def from_step(dump: Path, *asked: object) -> int:
    code, text = aten_dump("ctl", dump, *asked, "--wait", 100)
    assert code == 0, text
    found = re.match(r"from step (\d+) on, 2 ranks record ", text)
    assert found, text
    return int(found[1])


@pytest.mark.slow
def test_two_ranks_change_at_the_same_step(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    recording = [*PYTHON, "-m", "aten_dump", "run", "--path", str(dump), "--steps", "none", "--data", "structure", "--"]
    command = [*recording, *TORCHRUN, "-m", "tests.launch.programs", "endless", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        program = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log)
    try:
        wait_for((dump / "run.json").exists)
        code, text = aten_dump("ctl", dump, "status", "--wait", 100)
        assert code == 0, text
        ranks = re.findall(r"rank (\d): begins step \d+, records steps none at level mix", text)
        assert ranks == ["0", "1"]
        first = from_step(dump, "on")
        wait_for(lambda: (dump / f"step{first + 1}").exists())
        middle = from_step(dump, "level", "module")
        last = from_step(dump, "off")
        (tmp_path / "stop").touch()
        assert program.wait(timeout=120) == 0, (tmp_path / "log").read_text()
    finally:
        program.kill()
        program.wait()
    found = open_dump(dump)
    reached = min(last, found.steps[-1] + 1)  # it may have stopped before
    assert found.steps == list(range(first, reached))
    for number in found.steps:
        step = found.step(number)
        assert step.ranks == [0, 1]
        levels = {step.rank(rank).config["level"] for rank in step.ranks}
        assert levels == {"mix" if number < middle else "module"}


@pytest.fixture
def files(tmp_path: Path) -> ControlFiles:
    (tmp_path / "run.json").write_text(json.dumps({"ranks": "0-1", "world_size": 2, "started_unix_ns": 5}))
    return ControlFiles(tmp_path)


def test_who_does_not_answer_is_named_and_what_was_asked_stays(files: ControlFiles, tmp_path: Path) -> None:
    code, text = aten_dump("ctl", tmp_path, "steps", "5-8", "--wait", 0)
    assert code == 2
    assert "no answer from ranks 0-1: they answer when a step ends. Check that the program runs" in text
    request = files.request()
    assert request is not None and (request.number, request.steps, request.level) == (1, "5-8", None)
    code, text = aten_dump("ctl", tmp_path, "level", "api", "--wait", 0)
    request = files.request()
    assert request is not None and (request.number, request.steps, request.level) == (2, "5-8", "api")
    files.write(Decision(2, 7))
    aten_dump("ctl", tmp_path, "off", "--wait", 0)
    request = files.request()
    assert request is not None and (request.number, request.steps, request.level) == (3, "none", None)


def test_a_change_that_a_rank_cannot_make_is_an_error(files: ControlFiles, tmp_path: Path) -> None:
    files.write(Request(4, 3))
    files.write(Answer(1, 5, 3, "all", "mix", error="because"))
    assert aten_dump("ctl", tmp_path, "level", "aten", "--wait", 5) == (2, "Error: rank 1 cannot: because\n")


def test_ranks_that_were_silent_at_the_decision_are_named(files: ControlFiles, tmp_path: Path) -> None:
    files.write(Decision(1, 12, (1,)))
    code, text = aten_dump("ctl", tmp_path, "on", "--wait", 5)
    assert code == 2
    assert text.startswith("from step 12 on, 2 ranks record steps all\n")
    assert "no answer from ranks 1:" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["steps"], "steps takes a value"),
        (["on", "3"], "on takes no value"),
        (["steps", "8-5"], "ranges that go up"),
        (["level", "deep"], "DumpConfig.level is 'deep'; allowed: aten, api, module, mix"),
        (["faster"], "'faster' is not one of"),
    ],
)
def test_what_makes_no_sense_is_not_asked(files: ControlFiles, tmp_path: Path, arguments: list[str], text: str) -> None:
    code, found = aten_dump("ctl", tmp_path, *arguments)
    assert code == 2
    assert text in found
    assert files.request() is None


def test_where_nothing_was_recorded_nothing_is_asked(tmp_path: Path) -> None:
    code, text = aten_dump("ctl", tmp_path / "nowhere", "status")
    assert code == 2
    assert "run.json" in text
    assert set(ctl._ACTIONS) >= {"on", "off", "steps", "level", "status"}


def test_of_a_restarted_program_the_last_attempt_is_asked(files: ControlFiles, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"restart{number}").mkdir()
        (tmp_path / f"restart{number}" / "run.json").write_text(json.dumps({"ranks": "0", "world_size": 1}))
    attempt = ControlFiles(tmp_path / "restart2")
    attempt.write(Answer(0, 1, 3, "all", "mix"))
    code, text = aten_dump("ctl", tmp_path, "status", "--wait", 5)
    said = [
        f"restart 2 of the program, in {tmp_path / 'restart2'}",
        "rank 0: begins step 3, records steps all at level mix",
    ]
    assert (code, text.splitlines()) == (0, said)
    assert files.request() is None and attempt.request() is not None


def test_a_dump_that_claims_more_ranks_than_memory_holds_is_asked_as_any(tmp_path: Path) -> None:
    claim = {"ranks": "0-4|7-999999999999999999", "world_size": 2, "started_unix_ns": "yesterday"}
    (tmp_path / "run.json").write_text(json.dumps(claim))
    ControlFiles(tmp_path).write(Answer(8, 1, 3, "all", "mix"))
    ControlFiles(tmp_path).write(Answer(6, 1, 3, "all", "mix"))  # none of the dump's
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(10)
    try:
        code, text = aten_dump("ctl", tmp_path, "status", "--wait", 0)
        changed = aten_dump("ctl", tmp_path, "on", "--wait", 0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert code == changed[0] == 2
    assert text.splitlines()[0] == "rank 8: begins step 3, records steps all at level mix"
    assert "no answer from ranks 0-4, 7, 9-999999999999999999: " in text


@pytest.mark.parametrize("linked", ["folder", "file"])
def test_nothing_outside_the_dump_is_read_or_written_through_a_link(
    files: ControlFiles, tmp_path: Path, linked: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "request.json").write_text("mine")
    (elsewhere / "answer-rank0.json").write_text(
        json.dumps({"rank": 0, "number": 1, "step": 3, "steps": "S", "level": ""})
    )
    if linked == "folder":
        (tmp_path / "control").symlink_to(elsewhere)
    else:
        (tmp_path / "control").mkdir()
        for name in ("request.json", "answer-rank0.json", "decision.json"):
            (tmp_path / "control" / name).symlink_to(elsewhere / name)
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    code, text = aten_dump("ctl", tmp_path, "on", "--wait", 0)
    assert code == 2 and "Traceback" not in text
    assert linked == "file" or "control is a symbolic link" in text
    assert "rank 0: begins" not in aten_dump("ctl", tmp_path, "status", "--wait", 0)[1]
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


@pytest.mark.parametrize("silent", [[[]], [1, "2"], [None]])
def test_a_decision_that_makes_no_sense_is_none(files: ControlFiles, tmp_path: Path, silent: list[object]) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "decision.json").write_text(json.dumps({"number": 1, "from_step": 2, "silent": silent}))
    code, text = aten_dump("ctl", tmp_path, "on", "--wait", 0)
    assert (code, text.partition(":")[0]) == (2, "Error")
    assert "no answer from ranks 0-1" in text
