"""Compare, replay and verify on executors: processes, a cluster of dask's, the command line's --jobs; and in bounded memory."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.executors import verify_all
from aten_dump.analysis.replay import replay_all
from aten_dump.cli.main import main
from aten_dump.errors import MissingDataError
from tests.checkout import ROOT
from tests.sampling import every_second


def record(path: Path, scale: float) -> Path:
    """Record two steps of a small model as rank 0, then as rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    x = torch.randn(4, 6)
    for rank in range(2):
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("RANK", str(rank))
            environment.setenv("WORLD_SIZE", "2")
            with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
                for _ in range(2):
                    model.zero_grad()
                    (model(x) * scale).sum().backward()
                    dump.step()
    return path


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("executors")
    return record(root / "target", 1.01), record(root / "baseline", 1.0)


@pytest.fixture(scope="module", params=every_second(["processes", "dask"]))
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "processes":
        with ProcessPoolExecutor(2, get_context("spawn")) as processes:
            yield processes
        return
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as found,
    ):
        yield found


def test_results_are_those_of_this_process_in_order_and_progress_is_told(
    executor: Executor, dumps: tuple[Path, Path]
) -> None:
    target, baseline = dumps
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    all_told = [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert verify_all(target, executor, progress=progress) == verify_all(target)
    assert [(one.step, one.rank) for one in verify_all(target, executor)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert told == all_told
    told.clear()
    assert replay_all(target, executor, progress=progress) == replay_all(target)
    assert told == all_told
    told.clear()
    found, alone = compare(target, baseline, executor=executor, progress=progress), compare(target, baseline)
    assert told == all_told
    assert (found.verdict, found.answer()) == (alone.verdict, alone.answer()) == ("different", alone.answer())


def test_an_error_in_a_worker_is_raised_here(executor: Executor, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    empty = tmp_path / "statistics"
    with DumpMode(DumpConfig(path=empty, data="statistic")) as dump:
        torch.ones(2) + 1
        dump.step()
    with pytest.raises(MissingDataError, match='needs data="tensor" or "full"'):
        replay_all(empty, executor)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.slow
def test_jobs_on_the_command_line(dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, baseline = map(str, dumps)
    assert run("compare", target, baseline, "--jobs", "2") == 1
    out = capsys.readouterr().out
    assert [out.count(f"step {step} ranks 0-1: first cause") for step in (0, 1)] == [1, 1]
    assert run("replay", baseline, "--all", "--jobs", "2") == 0
    out = capsys.readouterr().out
    assert [out.count(f"step {step} ranks 0-1: no op has a larger error") for step in (0, 1)] == [1, 1]
    assert run("replay", baseline, "--jobs", "2") == run("replay", baseline, "--all", "--step", "0") == 2
    assert "--all" in capsys.readouterr().err


@pytest.mark.slow  # of the workers of one process `test_a_wrong_byte_is_told_with_its_place` tells
def test_verify_finds_a_flipped_byte_whatever_process_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "d", data="tensor")) as dump:
        for _ in range(2):
            torch.ones(50) + 1
            dump.step()
    shard = tmp_path / "d" / "step1" / "rank0" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    outputs = []
    for jobs in ("1", "2"):
        assert run("verify", str(tmp_path / "d"), "--jobs", jobs) == 1
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "step 1 rank 0: blob" in outputs[0]


def test_parquet_holds_the_rows_of_the_csv_file(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target, baseline = map(str, dumps)
    for form in ("csv", "parquet"):
        assert run("compare", target, baseline, "--format", form, "--output", str(tmp_path / f"rows.{form}")) == 1
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(table) == len(rows) > 100
    assert list(table[0]) == list(rows[0])
    for one, other in zip(table, rows, strict=True):
        for name, text in other.items():
            found = "" if one[name] is None else str(one[name])
            assert (found.lower() if isinstance(one[name], bool) else found) == text, name


def test_large_tensors_are_compared_in_chunks(tmp_path: Path) -> None:
    nbytes = 128 << 20
    result = subprocess.run(
        [sys.executable, "-m", "tests.analysis.large", str(tmp_path), str(nbytes)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    before, after, _ = map(float, result.stdout.split())
    assert after - before < nbytes / 4


@pytest.mark.slow
def test_a_scheduler_whose_workers_are_other_processes_says_what_one_process_says(
    dumps: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    dask = [sys.executable, "-m", "dask"]
    place = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    commands = [[*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", place]]
    commands += [[*dask, "worker", "--scheduler-file", place, "--nthreads", "1", "--no-dashboard"]] * 2
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) for command in commands
    ]
    try:
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        address = json.loads(place.read_text())["address"]
        target, baseline = map(str, dumps)
        for command in (["compare", target, baseline], ["verify", target], ["replay", target, "--all"]):
            code = run(*command)
            alone = capsys.readouterr().out
            assert run(*command, "--scheduler", address) == code
            assert capsys.readouterr().out == alone
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_scheduler_that_is_not_there_is_said(dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed")
    assert run("verify", str(dumps[0]), "--scheduler", "no address") == 2
    assert "--scheduler no address: cannot be reached" in capsys.readouterr().err
    assert run("replay", str(dumps[0]), "--scheduler", "tcp://127.0.0.1:1") == 2
    assert "give --all" in capsys.readouterr().err


def test_a_task_lists_no_folders_of_other_ranks(tmp_path: Path) -> None:
    """However many ranks there are, the folders of steps are listed as often."""
    listed: dict[int, int] = {}
    watched: list[str] = []
    sys.addaudithook(lambda event, args: watched.append(str(args[0])) if event == "os.scandir" else None)
    for ranks in (2, 6):
        path = tmp_path / str(ranks)
        record(path, 1.0)
        for step in range(2):
            for rank in range(2, ranks):
                shutil.copytree(path / f"step{step}" / "rank0", path / f"step{step}" / f"rank{rank}")
        watched.clear()
        compare(path, path)
        replay_all(path)
        listed[ranks] = sum(place == str(path) or Path(place).parent == path for place in watched)
    assert listed[2] == listed[6] > 0
