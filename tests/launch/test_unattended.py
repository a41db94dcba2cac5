"""Programs that know nothing of aten_dump, recorded in every rank, with the bits of the bare program."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpMode
from aten_dump.launch import unattended
from aten_dump.launch.hook.torch_import import VARIABLE
from tests.launch.running import ACCELERATE, PYTHON, TORCHRUN, Ran, bare_ranks, environment, record, run, same


def modules_of(ran: Ran, step: int = 0, rank: int = 0) -> set[str]:
    return {call.module for call in ran.dump.step(step).rank(rank).calls if call.kind == "module"}


def forwards(ran: Ran, module: str, step: int, rank: int = 0) -> int:
    found = ran.dump.step(step).rank(rank).calls.filter(kind="module", phase="forward")
    return sum(call.module == module for call in found)


def ending(ran: Ran) -> str:
    """Return the line that the command ends with."""
    steps, folder = ran.dump.steps, ran.folder / "dump"
    text = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps ({steps[0]} to {steps[-1]})"
    return f"aten_dump: {text} recorded in {folder}. Next: aten-dump ls {folder}\n"


def has_optimizer(ran: Ran, step: int, rank: int = 0) -> bool:
    return any(call.phase == "optimizer" for call in ran.dump.step(step).rank(rank).calls)


@pytest.mark.slow
def test_accumulated_batches_are_one_step_and_all_that_a_command_has_is_passed_on(tmp_path: Path) -> None:
    bare, recorded = run("accumulating", tmp_path)
    assert (recorded.done.returncode, recorded.done.stdout) == (bare.done.returncode, bare.done.stdout) == (7, "")
    assert (recorded.done.stderr, bare.done.stderr) == (ending(recorded), "")
    assert same(bare.result(), recorded.result())
    assert recorded.result()["input"] == "from stdin"
    trained = [step for step in recorded.dump.steps if has_optimizer(recorded, step)]
    assert trained == [0, 1, 2]
    assert [forwards(recorded, "3", step) for step in trained] == [2, 2, 2]
    assert modules_of(recorded) == {"", "0", "1", "2", "3"}
    assert all(step.rank(0).complete for step in map(recorded.dump.step, recorded.dump.steps))


@pytest.mark.slow
def test_a_step_that_a_scaler_skips_is_a_step(tmp_path: Path) -> None:
    bare, recorded = run("scaled", tmp_path)
    assert same(bare.result(), recorded.result()), recorded.done.stderr
    assert [forwards(recorded, "3", step) for step in (0, 1, 2)] == [1, 1, 1]
    assert recorded.dump.steps[:3] == [0, 1, 2]


@pytest.mark.slow
def test_optimizers_that_step_one_after_the_other_share_a_step(tmp_path: Path) -> None:
    bare, recorded = run("two_optimizers", tmp_path, steps="0")
    assert same(bare.result(), recorded.result()), recorded.done.stderr
    assert recorded.dump.steps == [0]
    assert forwards(recorded, "Linear", 0) == 1
    assert modules_of(recorded) >= {"Sequential", "Sequential.0", "Linear"}
    optimizer = recorded.dump.step(0).rank(0).calls.filter(op="aten::add_", phase="optimizer")
    assert len(optimizer) == 6  # 4 parameters of one, 2 of the other


@pytest.mark.parametrize(
    "launcher", [TORCHRUN, pytest.param(PYTHON, marks=pytest.mark.slow)], ids=["torchrun", "spawn"]
)
def test_every_rank_is_recorded(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    recorded = record("ddp" if launcher is TORCHRUN else "spawn", tmp_path, launcher, steps="0-1", data="full")
    assert recorded.done.returncode == 0, recorded.done.stderr
    for rank, bare in enumerate(bare_ranks("ddp", tmp_path / "bare")):
        assert same(bare, recorded.result(rank))
        assert recorded.dump.steps == [0, 1]
        assert [forwards(recorded, "3", step, rank) for step in (0, 1)] == [1, 1]
        assert modules_of(recorded, 0, rank) == {"DistributedDataParallel", "", "0", "1", "2", "3"}
        assert has_optimizer(recorded, 1, rank)
        assert recorded.dump.step(1).rank(rank).complete
    assert recorded.dump.step(0).rank(0).header.world_size == 2
    assert recorded.done.stderr.count(ending(recorded)) == 1, "one rank says it"
    assert len({recorded.dump.step(0).rank(rank).header.pid for rank in (0, 1)}) == 2


@pytest.mark.parametrize(
    ("program", "launcher", "module", "steps"),
    [
        pytest.param("accelerated", ACCELERATE, "3", 2, marks=pytest.mark.slow),
        pytest.param("trainer", PYTHON, "body.3", 3, marks=pytest.mark.slow),
        pytest.param("lightning", PYTHON, "body.3", 3, marks=pytest.mark.slow),
    ],
)
def test_trainers_of_others_are_recorded(
    tmp_path: Path, program: str, launcher: tuple[str, ...], module: str, steps: int
) -> None:
    bare, recorded = run(program, tmp_path, launcher, data="structure")
    assert recorded.done.returncode == bare.done.returncode == 0, recorded.done.stderr
    assert same(bare.result(), recorded.result())
    trained = [step for step in recorded.dump.steps if has_optimizer(recorded, step)]
    assert trained == list(range(steps))
    assert [forwards(recorded, module, step) for step in trained] == [2] * steps
    assert recorded.done.stderr.count("aten_dump") == ending(recorded).count("aten_dump")


@pytest.mark.slow
def test_the_end_says_that_compiled_functions_ran_as_written(tmp_path: Path) -> None:
    said = "2 calls of compiled functions ran as written, so a bug of the compiler is not in this recording"
    for how, is_said in (("eager", True), ("opaque", False)):
        done = record("compiled", tmp_path / how, compile=how).done
        assert done.returncode == 0 and (said in done.stderr) is is_said, done.stderr


@pytest.mark.slow
def test_an_error_of_the_program_is_its_own_and_is_noted(tmp_path: Path) -> None:
    bare, recorded = run("broken", tmp_path, data="structure")
    assert recorded.done.returncode == bare.done.returncode == 1
    *_, last, end = recorded.done.stderr.splitlines()
    assert end + "\n" == ending(recorded)
    assert last == bare.done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: The size of tensor a (4)")
    failed = recorded.dump.step(1).rank(0)
    assert failed.complete
    assert [note.message for note in failed.notes if note.code == "exception"] == [f"{last} ended the block"]


@pytest.mark.slow
def test_a_child_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    bare, recorded = run("with_child", tmp_path, data="structure")
    assert bare.done.stderr == ""
    assert recorded.done.stderr.startswith("aten_dump: process ")
    assert recorded.done.stderr.endswith(
        " was started by rank 0, which records, and has no other rank: it is not recorded\n" + ending(recorded)
    )
    assert {rank.header.pid for rank in recorded.dump.all_ranks()} == {recorded.result()["pid"]}


@pytest.mark.slow
def test_a_script_that_records_itself_is_left_alone(tmp_path: Path) -> None:
    _, recorded = run("records_itself", tmp_path)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert not (recorded.folder / "dump").exists()


def test_nothing_is_recorded_before_the_first_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Launchers import torch too: they are not recorded, and torch is left as it was when the wait is over."""
    before = nn.Module.__call__
    monkeypatch.setenv(VARIABLE, json.dumps({"path": str(tmp_path / "dump")}))
    waiting = unattended.begin(VARIABLE)
    try:
        torch.ones(2).exp()
        assert nn.Module.__call__ is not before
        assert DumpMode.current() is None
    finally:
        waiting.close()
    assert nn.Module.__call__ is before
    assert not (tmp_path / "dump").exists()


def test_a_folder_that_cannot_be_written_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dump").write_text("a file")
    monkeypatch.setenv(VARIABLE, json.dumps({"path": str(tmp_path / "dump")}))
    monkeypatch.setenv("ATEN_DUMP_RUN_RANK", "")
    waiting = unattended.begin(VARIABLE)
    try:
        with pytest.raises(SystemExit) as ended:
            nn.Linear(1, 1)(torch.ones(1))
        assert ended.value.code == 2
    finally:
        waiting.close()
    said = capsys.readouterr().err
    assert re.fullmatch(r"aten_dump: .*cannot create the folder .*--path and --overwrite for that\n", said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "aten_dump: step 0 recorded in DUMP. Next: aten-dump ls 'DUMP'"),
        pytest.param(
            ("--steps", "7"), "aten_dump: no step was recorded in DUMP: of steps='7' none ran", marks=pytest.mark.slow
        ),
    ],
)
def test_a_recorded_command_ends_with_where_the_dump_is(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    dump = tmp_path / "a dump"
    script = "import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))"
    command = [*PYTHON, "-m", "aten_dump", "run", "--path", str(dump), *options, "--", *PYTHON, "-c", script]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == said.replace("DUMP", str(dump))
