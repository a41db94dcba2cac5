"""Runs that hang, seen from outside: real processes that talk over gloo, live or killed, and what `hang` says of them."""

from __future__ import annotations

import json
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch.testing._internal.distributed.fake_pg import FakeStore

from aten_dump import DumpConfig, DumpMode, FormatError, MissingDataError, hang
from aten_dump.analysis.hang import Hang
from aten_dump.cli.main import main
from tests.checkout import ROOT
from tests.forked import start

PROGRAM = Path(__file__).parent / "hanging_program.py"
WORLD = 4
Found = Callable[[Hang], bool]


@contextmanager
def running(folder: Path, case: str) -> Iterator[list[BaseProcess]]:
    """Run the program of four ranks, and end what is left of it."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(WORLD)}
    run = f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    code = f"import sys, runpy; sys.argv[1:] = [{case!r}, {str(folder / 'dump')!r}]; {run}"
    ranks = [
        start(["-c", code], folder / f"rank{rank}.log", {**environment, "RANK": str(rank)}) for rank in range(WORLD)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def wait_for(folder: Path, found: Found, patience_s: float = 0.5) -> Hang:
    """Return what is said as soon as it is this."""
    deadline = time.monotonic() + 90
    last: Hang | str = "nothing was recorded"
    while time.monotonic() < deadline:
        if (folder / "dump" / "run.json").exists():
            try:
                last = hang(folder / "dump", patience_s=patience_s)
            except MissingDataError as error:
                last = str(error)
            if isinstance(last, Hang) and found(last):
                return last
        time.sleep(0.2)
    said = last.answer() if isinstance(last, Hang) else last
    logs = "\n".join(file.read_text()[-500:] for file in sorted(folder.glob("rank*.log")))
    raise AssertionError(f"it does not say so:\n{said}\n{logs}")


def line_of(function: str, text: str) -> int:
    """Return the number of the first line of the program that has this text, below the beginning of a function."""
    lines = PROGRAM.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(number for number, line in enumerate(lines[begin:], begin + 1) if text in line)


def says(kind: str, ranks: tuple[int, ...], function: str, text: str) -> Found:
    """Return whether the first finding is of this kind, lies on these ranks, and names this line of the program."""
    line = f"{PROGRAM.name}:{line_of(function, text)} "

    def found(result: Hang) -> bool:
        first = next(iter(result.findings), None)
        if first is None or (first.kind, first.ranks) != (kind, ranks):
            return False
        return line in "\n".join((first.text, *first.details))

    return found


CASES = {
    "circle_of_three": says("cycle", (0, 1, 2), "circle_of_three", "reduce(group=groups[first])"),
    "scatter_from_another": says("apart", (3,), "scatter_from_another", "dist.scatter("),
    "chain": says("stuck", (3,), "sleep", "time.sleep"),
    "all_send_first": says("cycle", (0, 1, 2, 3), "all_send_first", "dist.send"),
    "dropped_send": says("transfer", (3, 0), "dropped_send", "dist.isend"),
    "stopped": says("ended", (3,), "stopped", "reduce()"),
    "left_at_once": says("ended", (3,), "reduce", "dist.all_reduce"),
    "left_within": says("ended", (3,), "left_within", "dist.all_reduce"),
    "killed_within": says("ended", (3,), "killed_within", "dist.all_reduce"),
    "raised_within": says("ended", (3,), "raised_within", "reshape(3)"),
    "keeps_the_lock": says("ended", (3,), "keeps_the_lock", "reduce()"),
    "barrier_or_broadcast": says("apart", (3,), "barrier_or_broadcast", "dist.barrier()"),
    "another_tag": says("apart", (0, 1), "another_tag", "dist.recv"),
    "lock": says("stuck", (3,), "lock", "threading.Event().wait()"),
    "functional_collective": says("stuck", (3,), "sleep", "time.sleep"),
    "raise_in_backward": says("ended", (3,), "raise_in_backward", "gradient.reshape(3)"),
    "another_reduction": says("apart", (3,), "reduce", "dist.all_reduce"),
    "one_less": says("apart", (3,), "reduce", "dist.all_reduce"),
    "unwaited": says("unwaited", (3,), "unwaited", "async_op=True"),
    "interrupted": says("ended", (3,), "interrupted", "raise KeyboardInterrupt"),
}
QUICK = ("circle_of_three", "scatter_from_another", "chain")  # the others take a minute in all


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_the_rank_and_the_line_are_named_while_it_hangs(tmp_path: Path, case: str) -> None:
    with running(tmp_path, case):
        found = wait_for(tmp_path, CASES[case])
    assert found.exit_code == 1


def test_a_run_that_was_killed_says_the_same(tmp_path: Path) -> None:
    with running(tmp_path, "chain") as ranks:
        wait_for(tmp_path, CASES["chain"])
        for rank in ranks:
            rank.kill()
            rank.join()
        found = hang(tmp_path / "dump", patience_s=0.5)
        assert CASES["chain"](found), found.answer()
    (first, *others) = found.findings
    assert not others and first.waiting == (0, 1, 2)


@pytest.mark.slow
def test_a_rank_that_goes_on_is_slow_and_no_fault(tmp_path: Path) -> None:
    with running(tmp_path, "slow"):
        found = wait_for(tmp_path, lambda result: bool(result.findings) and result.findings[0].waiting == (0, 1, 2), 5)
        time.sleep(6)
        later = hang(tmp_path / "dump", patience_s=5)
    for one in (found, later):
        assert [finding.kind for finding in one.findings] == ["slow"] and one.exit_code == 0
        assert one.answer().startswith("No hang")


@pytest.mark.slow
def test_where_ranks_are_in_a_step_that_is_not_recorded(tmp_path: Path) -> None:
    lines = [f"{PROGRAM.name}:{line_of('reduce', 'dist.all_reduce')} "] * 3
    lines.append(f"{PROGRAM.name}:{line_of('sleep', 'time.sleep')} ")

    def are_there(result: Hang) -> bool:
        return len(result.ranks) == WORLD and all(
            line in life.line for line, life in zip(lines, result.ranks, strict=True)
        )

    with running(tmp_path, "unrecorded"):
        found = wait_for(tmp_path, are_there)
    assert found.exit_code == 2
    assert "not recorded" in found.answer()


def test_signs_of_life_alone_say_where_a_rank_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is recorded, and one rank of two has not begun."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pulse = tmp_path / "dump" / "control" / "pulse-rank0.json"
    with DumpMode(DumpConfig(path=tmp_path / "dump", steps="none")):
        deadline = time.monotonic() + 60
        while not pulse.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        ranks = {life.rank: life for life in hang(tmp_path / "dump").ranks}
        assert "test_signs_of_life" in ranks[0].line
        assert (ranks[0].kind, ranks[1].kind) == ("alive", "absent")
    assert hang(tmp_path / "dump").ranks[0].kind == "closed"


Step = Callable[[DumpMode, int], None]


def recorded(path: Path, world: int, step: Step) -> Path:
    """Record ranks one after the other, over the backend that delivers nothing; return the dump."""
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            with DumpMode(DumpConfig(path=path, data="structure")) as dump:
                step(dump, rank)
        finally:
            dist.destroy_process_group()
    return path


def test_one_process_alone_runs_until_its_recording_ends(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", durability="step")) as dump:
        torch.ones(2).neg()
        dump.step()
        assert "rank 0: step 0; is running" in hang(tmp_path / "dump").answer()
    assert "rank 0: step 0; ended its recording" in hang(tmp_path / "dump").answer()


def test_ranks_that_agree_have_no_finding_and_those_alike_are_one_line(tmp_path: Path) -> None:
    def step(dump: DumpMode, rank: int) -> None:
        for _ in range(2):
            dist.all_reduce(torch.ones(4))
            dump.step()

    found = hang(recorded(tmp_path / "dump", 6, step))
    assert (found.findings, found.exit_code) == ((), 0)
    first, ranks = found.answer().splitlines()
    assert first.startswith("No hang") and ranks.startswith("ranks 0-5: step 1; ended its recording")


@pytest.mark.parametrize("more", [{"op": dist.ReduceOp.MAX}, {"numel": 5}, {"dtype": torch.float64}, {"steps": 1}])
def test_the_first_collective_of_all_steps_that_differs_is_named(tmp_path: Path, more: dict[str, object]) -> None:
    """They go apart in step 1 of 4; nothing hangs, and later steps are alike."""

    def step(dump: DumpMode, rank: int) -> None:
        for number in range(4):
            odd = more if (rank, number) == (2, 1) else {}
            dist.all_reduce(torch.ones(4))
            if "steps" not in odd:
                tensor = torch.ones(odd.get("numel", 4), dtype=odd.get("dtype"))  # type: ignore[call-overload]
                dist.all_reduce(tensor, op=odd.get("op", dist.ReduceOp.SUM))
            dump.step()

    found = hang(recorded(tmp_path / "dump", 5, step))
    (first,) = found.findings
    assert (first.kind, first.ranks, found.exit_code) == ("apart", (2,), 1)
    assert "collective 1 of step 1 in group 0 (ranks 0-4)" in first.text


def test_the_command_prints_it_as_text_and_json(tmp_path: Path) -> None:
    def step(dump: DumpMode, rank: int) -> None:
        dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
        dump.step()

    path = str(recorded(tmp_path / "dump", 3, step))
    text = CliRunner().invoke(main, ["hang", path])
    live = CliRunner().invoke(main, ["ls", path, "--live"])
    plain = CliRunner().invoke(main, ["hang", path, "--format", "json"])
    assert (text.exit_code, live.exit_code, plain.exit_code) == (1, 1, 1)
    assert text.stdout == live.stdout and text.stdout.startswith("Ranks go apart: rank 1 and the others")
    rows = json.loads(plain.stdout)
    assert rows["findings"][0]["ranks"] == [1] and [rank["state"] for rank in rows["ranks"]] == ["closed"] * 3
    assert CliRunner().invoke(main, ["hang", str(tmp_path / "none")]).exit_code == 2


TRACED = """
import os, sys, time, datetime, torch, torch.distributed as dist
folder, rank = sys.argv[1], int(os.environ["RANK"])
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=300))
dist.all_reduce(torch.ones(4))
kept = [dist.all_reduce(torch.ones(5), async_op=True)] if rank == 0 else []
trace = torch._C._distributed_c10d._dump_fr_trace()
with open(f"{folder}/trace_{rank}.partial", "wb") as file:
    file.write(trace)
os.rename(f"{folder}/trace_{rank}.partial", f"{folder}/trace_{rank}")
time.sleep(600)
"""


def test_traces_of_the_flight_recorder_are_read_and_nothing_in_them_is_run(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "100"}
    ranks = [
        start(["-c", TRACED, str(tmp_path)], tmp_path / f"rank{rank}.log", {**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    files = [tmp_path / f"trace_{rank}" for rank in range(2)]
    deadline = time.monotonic() + 90
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in ranks:
        process.kill()
        process.join()

    def step(dump: DumpMode, rank: int) -> None:
        dist.all_reduce(torch.ones(4))
        dump.step()

    path = recorded(tmp_path / "dump", 2, step)
    found = hang(path, flight_recorder=files)
    (meeting,) = (one for one in found.open if one.missing == (1,))
    assert list(meeting.waiting) == [0] and "all_reduce float32[5]" in meeting.first.shown
    assert "test_hang" in meeting.first.where or "<string>" in meeting.first.where
    marker = tmp_path / "was_run"

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {marker}",)

    files[1].write_bytes(pickle.dumps({"entries": [Evil()]}))
    with pytest.raises(FormatError, match=r"trace_1 is no trace .*system"):
        hang(path, flight_recorder=files)
    assert not marker.exists()


def test_what_the_guide_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(dump: DumpMode, rank: int) -> None:
        dist.all_reduce(torch.ones(4))
        dump.step()

    recorded(tmp_path / "dump", 2, step)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guide" / "a-run-that-hangs.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "guide", "exec"), {})
    commands = [line.partition("#")[0].split() for line in text.splitlines() if line.startswith("aten-dump hang")]
    assert len(commands) == 5
    for _, *arguments in commands:
        if "--jobs" in arguments:
            arguments[-1] = "1"  # eight processes take longer to start
        wanted = 2 if "--flight-recorder" in arguments else 0  # there are no such traces here
        assert CliRunner().invoke(main, arguments).exit_code == wanted, arguments
