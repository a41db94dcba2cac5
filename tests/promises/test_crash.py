"""Promise 4: after kill -9 all that was written can be read, is right, and `recover` completes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from aten_dump import open_dump
from aten_dump.errors import MissingDataError
from aten_dump.store.checking.verification import verify
from aten_dump.store.recovery import recover
from tests import forked
from tests.capture.bits import calls, raw, values
from tests.capture.children import kill, started, wait_until_written
from tests.checkout import ROOT
from tests.devices import here


def command(options: dict[str, Any]) -> list[str]:
    return ["-m", "tests.promises.training", json.dumps({"device": here().type, **options})]


def start(options: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_after(tmp_path: Path, lines: int, delay: float, **config: Any) -> list[tuple[int, str, list[int]]]:
    """Run training until it has logged `lines` ops, and `delay` seconds more; kill it; return its log."""
    log = tmp_path / "log"
    log.touch()
    options = {
        "run": "logged",
        "model": "resnet",
        "log": str(log),
        "config": {"path": str(tmp_path / "dump"), **config},
    }
    child = forked.start(command(options), tmp_path / "said")
    try:
        deadline = time.monotonic() + 120
        while log.read_bytes().count(b"\n") < lines:
            assert child.exitcode is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline, "the child does not train"
            time.sleep(0.002)
        time.sleep(delay)
    finally:
        child.kill()
        child.join()
    text = log.read_bytes().decode()
    return [tuple(json.loads(line)) for line in text.splitlines() if line.endswith("]")]  # type: ignore[misc]


def check_step(rank: Any, expected: list[tuple[int, str, list[int]]]) -> int:
    """Compare the recorded aten calls of a step with the log; return how many there are."""
    found = calls(rank, kind="aten")
    # The op that ran when the program died may have been recorded and not logged.
    assert len(found) <= len(expected) + 1
    for call, (_, op, sums) in zip(found, expected, strict=False):
        assert call.op == op
        outputs = values(call.outputs)
        assert len(outputs) == len(sums), call.name
        for value, crc in zip(outputs, sums, strict=True):
            if value.undefined:
                continue
            try:
                tensor = value.tensor()
            except MissingDataError:
                assert rank.missing, f"{call.name}: bytes are missing and the reader does not say so"
                continue
            assert zlib.crc32(raw(tensor)) == crc, f"{call.name} has other bytes than the program saw"
    return len(found)


@pytest.mark.parametrize(
    ("lines", "delay"),
    [
        (30, 0.0),
        (500, 0.011),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((200, 0.004), (900, 0.007), (2000, 0.02))),
    ],
)
def test_killed_at_any_moment(tmp_path: Path, lines: int, delay: float) -> None:
    log = kill_after(tmp_path, lines, delay, data="tensor")
    last = log[-1][0]
    dump = open_dump(str(tmp_path / "dump"))
    by_step = {step: [entry for entry in log if entry[0] == step] for step in range(last + 2)}
    # Steps are committed in the background: all but those of the last moments are complete, and none is torn unnoticed.
    assert list(dump.steps) == list(range(len(dump.steps)))
    assert last - len(dump.steps) <= 3, f"the program was in step {last}; recorded {dump.steps}"
    for step in dump.steps:
        rank = dump.step(step).rank(0)
        count = check_step(rank, by_step[step])
        if rank.missing:
            assert not rank.complete and all(isinstance(said, str) for said in rank.missing)
        else:
            assert count == len(by_step[step])
    if last >= 4:
        assert not dump.step(last - 4).rank(0).missing, "a step that ended four steps ago is not on disk"
    # Now complete it.
    before = {step: [c.name for c in dump.step(step).rank(0).calls if c.finished] for step in dump.steps}
    for step in dump.steps:
        directory = tmp_path / "dump" / f"step{step}" / "rank0"
        recover(directory)
        assert verify(directory) == []
        assert not list(directory.glob("*.partial"))
    again = open_dump(str(tmp_path / "dump"))
    for step in again.steps:
        rank = again.step(step).rank(0)
        assert rank.complete
        assert [c.name for c in rank.calls if c.finished] == before[step]
        check_step(rank, by_step[step])
        for call in calls(rank, kind="aten"):
            for value in values((call.inputs, call.outputs)):
                if value.has_data:
                    value.tensor()


def test_everything_written_a_second_ago_is_there(tmp_path: Path) -> None:
    """A program that hangs (here: waits) and is then killed loses nothing of what it did before."""
    script = f"""
import time, torch
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(path={str(tmp_path / "dump")!r}, data="full")) as dump:
    for i in range(50):
        torch.full((1000,), float(i)).exp_()
    print("ready", flush=True)
    time.sleep(60)
"""
    child = started(script, "ready", tmp_path / "said")
    wait_until_written(tmp_path / "dump", "aten::exp_", 50)
    kill(child)
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert rank.missing
    exps = calls(rank, kind="aten", op="aten::exp_")
    assert len(exps) == 50
    for i, call in enumerate(exps):
        assert call.inputs[0][0].tensor().tolist() == [float(i)] * 1000
        assert call.inputs[0][0].stats.max == i


def test_a_clean_dump_misses_nothing(tmp_path: Path) -> None:
    options = {"run": "measured", "model": "resnet", "config": {"path": str(tmp_path / "dump"), "data": "full"}}
    ended = forked.run(command(options), tmp_path / "said")
    assert ended.code == 0, ended.said
    for step in (0, 1):
        assert open_dump(str(tmp_path / "dump")).step(step).rank(0).missing == []
        assert verify(tmp_path / "dump" / f"step{step}" / "rank0") == []
        report = recover(tmp_path / "dump" / f"step{step}" / "rank0")
        assert report.committed and not report.changed
    assert json.loads(ended.said.splitlines()[-1])["warnings"] == []


def test_terminated_by_a_signal_that_python_turns_into_an_exit(tmp_path: Path) -> None:
    """SIGINT: the block is left by KeyboardInterrupt and the dump is committed, but for a step that was just ending."""
    log = tmp_path / "log"
    log.touch()
    child = start(
        {
            "run": "logged",
            "model": "resnet",
            "log": str(log),
            "config": {"path": str(tmp_path / "dump"), "data": "tensor"},
        }
    )
    deadline = time.monotonic() + 120
    while log.read_bytes().count(b"\n") < 300 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    dump = open_dump(str(tmp_path / "dump"))
    assert dump.steps
    for step in dump.steps[:-1] if "in _end_step" in err else dump.steps:
        assert dump.step(step).rank(0).complete
