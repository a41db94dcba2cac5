"""torchrun restarts a program of which a rank was killed: the attempt that crashed is kept beside the next one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, StoreError, open_dump
from aten_dump.cli.main import main
from tests.checkout import ROOT

TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PROGRAM = """
import os, signal, sys, time
import torch
from torch import distributed as dist
from aten_dump import DumpConfig, DumpMode

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# a store per attempt: over torchrun's own store gloo hangs in connectFullMesh now and then after a restart
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store{attempt}", rank=rank, world_size=2)
with DumpMode(DumpConfig(path=sys.argv[1], data="tensor")) as dump:
    for step in range(3):
        x = torch.full((4,), float(10 * attempt + step + rank))
        dist.all_reduce(x)
        dump.step()
        dist.barrier()  # of the step after it: the last step has nothing else
        if attempt == 0 and step == 1 and rank == 1:
            while not all(os.path.isdir(f"{sys.argv[1]}/step2/rank{begun}") for begun in range(2)):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


def torchrun(folder: Path, path: str) -> None:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen(
        [*TORCHRUN, "--max-restarts", "1", str(script), path],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):  # its ranks outlive a torchrun that is killed
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-4000:]


def sums(path: Path, step: int, rank: int) -> float:
    """What the all_reduce of a step gave."""
    found = open_dump(path).step(step).rank(rank)
    call = next(call for call in found.calls if "allreduce" in call.op)
    return float(call.mutated_values["tensors"][0].tensor()[0])


@pytest.mark.slow
def test_the_attempt_that_crashed_is_kept(tmp_path: Path) -> None:
    torchrun(tmp_path, "dump")
    dump = open_dump(tmp_path / "dump")
    assert dump.steps[:2] == [0, 1]
    assert list(dump.attempts) == [1]
    assert dump.attempts[1].steps == [0, 1, 2, 3] and dump.attempts[1].ranks == [0, 1]
    assert (dump.run["restarts"], dump.attempts[1].run["restarts"]) == (0, 1)
    assert sums(tmp_path / "dump", 1, 0) == 3.0
    assert sums(tmp_path / "dump" / "restart1", 1, 0) == 23.0
    listed = CliRunner().invoke(main, ["ls", str(tmp_path / "dump")])
    assert listed.exit_code == 2 and "restart 1: 4 steps, 2 ranks" in listed.output.replace("\n", " ")
    assert CliRunner().invoke(main, ["recover", str(tmp_path / "dump")]).exit_code == 0
    whole = CliRunner().invoke(main, ["verify", str(tmp_path / "dump")])
    assert whole.exit_code == 1 and "restart1 step" not in whole.output, whole.output
    assert "interrupted (recovered" in whole.output
    shard = next((tmp_path / "dump" / "restart1" / "step2" / "rank1").glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    told = CliRunner().invoke(main, ["verify", str(tmp_path / "dump")])
    assert told.exit_code == 1 and "restart1 step 2 rank 1" in told.output


def record(path: Path, **options: object) -> None:
    with DumpMode(DumpConfig(path=str(path), **options)) as dump:  # type: ignore[arg-type]
        torch.ones(3).add(1)
        dump.step()


def test_the_path_says_where_attempts_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in (0, 1):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        record(tmp_path / "runs" / "{restart}" / "dump")
    assert sorted(path.parent.parent.name for path in (tmp_path / "runs").glob("*/dump/run.json")) == [
        "restart0",
        "restart1",
    ]
    assert open_dump(tmp_path / "runs/restart1/dump").run["restarts"] == 1


def test_attempts_of_the_program_before_are_replaced_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dump"
    record(path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    record(path)
    with pytest.raises(StoreError, match="already holds a dump"):
        record(path)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    with pytest.raises(StoreError, match="already holds a dump"):
        record(path)
    assert list(open_dump(path).attempts) == [1]
    record(path, overwrite=True)
    assert open_dump(path).attempts == {} and open_dump(path).steps == [0]
    assert not (path / "restart1").exists()


def test_a_folder_of_attempts_alone_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    record(tmp_path / "dump")
    dump = open_dump(tmp_path / "dump")
    assert dump.steps == [] and list(dump.attempts) == [1]
    with pytest.raises(Exception, match="Restarts of the program wrote restart1"):
        dump.step(0)


def test_links_are_no_attempts(tmp_path: Path) -> None:
    record(tmp_path / "dump")
    record(tmp_path / "other")
    (tmp_path / "dump" / "restart1").symlink_to(tmp_path / "other")
    dump = open_dump(tmp_path / "dump")
    assert dump.attempts == {}
    assert any("restart1 is no attempt" in problem for problem in dump.problems)
    record(tmp_path / "dump", overwrite=True)
    assert open_dump(tmp_path / "other").steps == [0]
