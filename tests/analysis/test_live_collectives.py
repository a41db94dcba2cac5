"""A run that hangs, seen from outside: two real processes, one of which does not come, or asks for something else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

from aten_dump import AtenDumpError, DumpConfig, DumpMode, open_dump
from aten_dump.analysis.live_collectives import Collective, Group, collectives_of
from aten_dump.cli.main import main
from tests.forked import start

PROGRAM = """
import os, sys, time, datetime, torch, torch.distributed as dist
from aten_dump import DumpConfig, DumpMode
folder, kind, rank = sys.argv[1], sys.argv[2], int(os.environ["RANK"])
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=300))
if kind == "absent" and rank == 1:
    time.sleep(600)
with DumpMode(DumpConfig(path=folder + "/dump", data="structure")) as dump:
    dist.all_reduce(torch.ones(4))
    dump.step()
    if kind == "late" and rank == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(5))
    if kind == "barrier" and rank == 0:
        dist.barrier()
    if kind == "receive" and rank == 0:
        dist.recv(torch.ones(3), src=1)
    if kind in ("barrier", "receive"):
        time.sleep(600)
    if kind == "hang" and rank == 1:
        time.sleep(600)
    if kind == "shapes":
        # of as many bytes: gloo ends a process that is sent more than it expects, before it has written what it began
        dist.all_reduce(torch.ones(6) if rank == 0 else torch.ones(2, 3), op=dist.ReduceOp.MAX, async_op=True)
    elif kind == "order" and rank == 1:
        dist.broadcast(torch.ones(7), src=0, async_op=True)
    else:
        dist.all_reduce(torch.ones(7), async_op=kind == "order")
    time.sleep(600)
"""


@contextmanager
def running(folder: Path, kind: str) -> Iterator[None]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    children = [
        start(["-c", PROGRAM, str(folder), kind], folder / f"rank{rank}.log", {**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.join()


def live(folder: Path) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["ls", str(folder / "dump"), "--live"])
    assert not found.stderr, found.stderr
    return found.exit_code, found.stdout


def groups(folder: Path, step: int) -> list[Group]:
    try:
        found = open_dump(folder / "dump").step(step)
        return collectives_of([found.rank(rank) for rank in found.ranks])
    except AtenDumpError:
        return []  # it is just being begun


def wait_for(folder: Path, words: str) -> Group:
    """Return the group of the second step as soon as it says this."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for group in groups(folder, 1):
            if any(words in one for one in group.mismatches()):
                return group
        time.sleep(0.1)
    raise AssertionError(f"{words!r} was not said; {groups(folder, 1)}")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("hang", "rank 0 has begun it and not ended it, rank 1 has not begun it"),
        ("shapes", "rank 0: c10d::allreduce_ float32[6] MAX; rank 1: c10d::allreduce_ float32[2, 3] MAX"),
        pytest.param(
            "order",
            "rank 0: c10d::allreduce_ float32[7] SUM; rank 1: c10d::broadcast_ float32[7]",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_ranks_of_a_run_do_not_agree_in(tmp_path: Path, kind: str, words: str) -> None:
    with running(tmp_path, kind):
        wanted = [[True, False], [True] if kind == "hang" else [True, False]]
        deadline = time.monotonic() + 60
        found: list[list[bool]] = []
        while found != wanted and time.monotonic() < deadline:  # an end is on file a moment after what follows it
            group = wait_for(tmp_path, words)
            found = [[one.ended for one in group.begun[rank]] for rank in (0, 1)]
        assert found == wanted
        code, text = live(tmp_path)
    assert code == 1
    assert words in text and "c10d::allreduce_ float32[5] SUM" in text


@pytest.mark.parametrize(
    ("kind", "words", "found"),
    [
        pytest.param(
            "late",
            "c10d::allreduce_ float32[5] SUM: rank 0 has begun it and not ended it, rank 1 has not begun it",
            1,
            marks=pytest.mark.slow,
        ),
        ("absent", "c10d::allreduce_ float32[4] SUM: rank 0 has begun it and not ended it, rank 1 has not begun it", 1),
        ("barrier", "c10d::barrier uint8[1]: rank 0 has begun it and not ended it, rank 1 has not begun it", 1),
        ("receive", "c10d::allreduce_ float32[5] SUM  c10d::recv_ float32[3]", 0),
    ],
)
def test_whom_and_what_a_rank_waits_for(tmp_path: Path, kind: str, words: str, found: int) -> None:
    with running(tmp_path, kind):
        deadline = time.monotonic() + 240
        code, text = 0, ""
        while words not in text and time.monotonic() < deadline:
            time.sleep(0.1)
            if (tmp_path / "dump" / f"step{int(kind != 'absent')}" / "rank0" / "index.msgpack").exists():
                code, text = live(tmp_path)
    assert words in text and code == found


def test_a_call_that_is_under_way_is_known_with_its_arguments(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with DumpMode(DumpConfig(path=tmp_path / "dump")) as dump:
            tensor = torch.ones(3)
            work = dist.all_reduce(tensor, async_op=True)
            dump.flush()
            (begun,) = (c for c in open_dump(tmp_path / "dump").step(0).rank(0).calls if c.op == "c10d::allreduce_")
            assert not begun.finished and [value.shape for _, value in begun.input_values()] == [(3,)]
            assert work is not None
            work.wait()
        calls = open_dump(tmp_path / "dump").step(0).rank(0).calls
        (ended,) = (call for call in calls if call.op == "c10d::allreduce_")
        assert ended.finished and (ended.id, ended.name) == (begun.id, begun.name)
    finally:
        dist.destroy_process_group()


def test_ranks_that_agree(tmp_path: Path) -> None:
    same = [Collective("c10d::allreduce_", ("float32[4]",), "SUM", True)]
    assert list(Group("0", (0, 1), {0: same, 1: same}).mismatches()) == []
    uneven = [Collective("c10d::alltoall_", (f"float32[{size}]",), "", False) for size in (1, 2)]
    assert list(Group("0", (0, 1), {0: uneven[:1], 1: uneven[1:]}).mismatches()) == []
    ahead = Group("0", (0, 1), {0: same, 1: []})
    assert list(ahead.mismatches()) == [], "nobody waits"
