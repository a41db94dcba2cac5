"""Runs record to object storage: what was on file is never lost, whatever the server does and whenever they are killed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.cli.main import main
from aten_dump.errors import StoreError
from aten_dump.store.checking.verification import verify
from aten_dump.store.objects.url_path import UrlPath
from aten_dump.store.spool import uploads
from aten_dump.store.spool.places import spool_folder
from tests.forked import start
from tests.object_server import Faults

RUN = (8, 128)  # steps and size of the model of runs that are killed
PROGRAM = """
import sys, torch; torch.set_num_threads(2)
from aten_dump import DumpConfig, DumpMode
from tests.store.spool.test_recording_to_urls import train
path, steps, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for step in train(DumpConfig(path=path, data="tensor", durability="step", shard_bytes=1 << 16), steps, size):
    print(step, flush=True)
"""


def train(config: DumpConfig, steps: int, size: int = 16) -> Iterator[int]:
    """Record a training run; yields the number of each step when it has ended."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.Tanh(), torch.nn.Linear(size, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(config, model=model) as dump:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, size)).square().mean().backward()
            optimizer.step()
            dump.step()
            yield step


def spool_files(url: str) -> list[str]:
    return sorted(file.name for file in spool_folder(UrlPath(url)).rglob("*") if file.is_file())


def assert_equal_to(url: str, local: Path, steps: range | list[int]) -> None:
    found = open_dump(url)
    for step in steps:
        rank = found.rank(step, 0)
        assert rank.state == "complete", (step, rank.missing)
        assert verify(rank.directory) == []
        assert compare(rank, open_dump(local).rank(step, 0)).verdict == "same", step


def test_a_run_that_records_to_a_url_is_the_dump_that_a_folder_would_hold(
    faults: Faults, url: str, tmp_path: Path
) -> None:
    faults.delay_s = 0.01
    list(train(DumpConfig(path=url, data="full", shard_bytes=1 << 16), 3, 128))
    list(train(DumpConfig(path=tmp_path / "run", data="full", shard_bytes=1 << 16), 3, 128))
    puts = faults.put_paths()
    faults.delay_s = 0
    found = open_dump(url)
    assert (found.steps, found.problems) == ([0, 1, 2], [])
    assert found.run["steps"] == "0-2"
    assert found.run["coverage"]["steps"] == 3
    assert_equal_to(url, tmp_path / "run", found.steps)
    shards = {str(step): [path for path in puts if f"step{step}/rank0/shard" in path] for step in range(3)}
    assert all(len(paths) > 1 for paths in shards.values()), "several shards"
    for step, paths in shards.items():
        index = next(at for at, path in enumerate(puts) if f"step{step}/rank0/index" in path)
        assert all(puts.index(path) < index for path in paths), "the index comes last"
    assert not [name for name in spool_files(url) if name.startswith(("shard", "index", "run"))]


def test_a_dump_that_is_there_is_kept_unless_overwrite_is_asked_for(faults: Faults, url: str) -> None:
    list(train(DumpConfig(path=url), 3))
    with pytest.raises(StoreError, match=r"already holds a dump: found step0/rank0/.*overwrite=True"):
        list(train(DumpConfig(path=url), 1))
    other = UrlPath(url) / "step0" / "notes.txt"
    other.store.put(other.key, b"of somebody else's")
    list(train(DumpConfig(path=url, overwrite=True), 1))
    assert open_dump(url).steps == [0]
    assert other.listed() is not None


def test_uploads_outlive_errors_and_the_program_does_not_notice(faults: Faults, url: str, tmp_path: Path) -> None:
    faults.error_rate = 0.3
    list(train(DumpConfig(path=url, data="tensor"), 4))
    faults.error_rate = 0
    list(train(DumpConfig(path=tmp_path / "run", data="tensor"), 4))
    assert_equal_to(url, tmp_path / "run", range(4))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retries of obstore's own, and short pauses."""
    monkeypatch.setattr("aten_dump.store.objects.object_store._RETRIES", {"max_retries": 0})
    monkeypatch.setattr(uploads, "_PAUSES", (0.05, 0.1))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another store")


@pytest.mark.usefixtures("impatient")
def test_a_store_that_is_gone_for_a_while_is_said_once_and_costs_nothing(
    faults: Faults, url: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in train(DumpConfig(path=url, data="tensor"), 6):
            faults.is_down = step < 4
            if step == 2:
                while not any("uploads fail" in str(one.message) for one in told):
                    time.sleep(0.01)
                assert "step2" not in str(faults.put_paths())
    texts = [str(one.message) for one in told if "uploads fail" in str(one.message)]
    assert len(texts) == 1, texts
    assert re.search(r"tried again, and the program goes on: [\d,]+ bytes of the spool", texts[0])
    list(train(DumpConfig(path=tmp_path / "run", data="tensor"), 6))
    assert_equal_to(url, tmp_path / "run", range(6))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_beyond_the_budget_failing_uploads_are_what_a_full_disk_is(
    faults: Faults, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    monkeypatch.setattr(uploads, "PATIENCE_SECONDS", 0.3)
    config = DumpConfig(path=url, data="tensor", on_error=on_error, spool_bytes=1 << 20)  # type: ignore[arg-type]
    steps = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            for step in train(config, 40, 128):
                faults.is_down = True
                steps.append(step)
                used = sum(file.stat().st_size for file in spool_folder(UrlPath(url)).rglob("*") if file.is_file())
                assert used <= (1 << 20) + (1 << 18), "the budget, and what is being written"
        except StoreError as error:
            assert on_error == "raise"
            assert re.search(r"the spool .* is full: [\d,]+ bytes wait.*aten-dump recover s3://", str(error))
    said = " ".join(str(one.message) for one in told)
    assert (len(steps) == 40) == (on_error == "warn"), "the program ended if, and only if, that was asked for"
    assert ("is full" in said) == (on_error == "warn")
    assert "`aten-dump recover" in said
    faults.is_down = False
    open_again = open_dump(url)
    assert any("has not uploaded everything" in text for text in open_again.problems)
    result = CliRunner().invoke(main, ["recover", url])
    assert result.exit_code == 0, result.output
    list(train(DumpConfig(path=tmp_path / "run", data="tensor"), 40, 128))
    found = open_dump(url)
    whole = [step for step in found.steps if found.rank(step, 0).state == "complete"]
    assert len(whole) >= 2
    assert_equal_to(url, tmp_path / "run", whole)
    assert found.problems == []


def killed_run(faults: Faults, url: str, at: int, is_after: bool, said: Path) -> list[int]:
    """Record in a process that is killed with its n-th upload, before or after the server has it; return the steps
    that had ended.
    """
    code = f"import sys; sys.argv[1:] = {[url, *map(str, RUN)]}\n{PROGRAM}"
    before = faults.puts
    process = start(["-c", code], said)

    def kill(number: int) -> None:
        if number - before >= at:
            process.kill()

    faults.on_put, faults.after_put = (None, kill) if is_after else (kill, None)
    process.join()
    faults.on_put = faults.after_put = None
    time.sleep(2 * faults.delay_s)  # what was on its way to the server
    return [int(line) for line in said.read_text().splitlines() if line.isdigit()]


def assert_nothing_is_lost(url: str, ended: list[int], reference: Path) -> None:
    spool = spool_folder(UrlPath(url))
    with contextlib.suppress(StoreError):
        before = open_dump(url)
        assert before.problems, "nobody takes it for the whole run"
        whole = [step for step in before.steps if before.rank(step, 0).complete]
        assert_equal_to(url, reference, whole)
    first = CliRunner().invoke(main, ["recover", url])
    assert first.exit_code == 0, (first.output, ended)
    if not UrlPath(url).is_dir():  # killed before anything was on file
        assert ended == []
        return
    found = open_dump(url)
    assert set(ended) <= set(found.steps), "what had ended is there"
    assert_equal_to(url, reference, ended)
    assert found.problems == []
    assert not list(spool.glob("step*"))
    assert CliRunner().invoke(main, ["recover", url]).exit_code == 0, "it can be run again"


@pytest.mark.parametrize(("at", "is_after"), [pytest.param(2, False, marks=pytest.mark.slow), (9, True)])
def test_a_killed_run_is_joined_with_its_spool(
    faults: Faults, url: str, tmp_path: Path, at: int, is_after: bool
) -> None:
    faults.delay_s = 0.02
    ended = killed_run(faults, url, at, is_after, tmp_path / "said")
    list(train(DumpConfig(path=tmp_path / "run", data="tensor"), *RUN))
    assert_nothing_is_lost(url, ended, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 100, 10))
def test_a_hundred_kills_lose_nothing_that_was_on_file(faults: Faults, url: str, tmp_path: Path, first: int) -> None:
    list(train(DumpConfig(path=tmp_path / "run", data="tensor"), *RUN))
    for number in range(first, first + 10):
        faults.delay_s = (0.0, 0.005, 0.03)[number % 3]
        faults.error_rate = (0.0, 0.1)[number // 3 % 2]
        place = f"{url}{number}"
        ended = killed_run(faults, place, 1 + number // 2, bool(number % 2), tmp_path / "said")
        faults.error_rate = faults.delay_s = 0.0
        assert_nothing_is_lost(place, ended, tmp_path / "run")


def test_a_run_that_still_uploads_is_left_alone(faults: Faults, url: str) -> None:
    faults.delay_s = 0.05
    run = train(DumpConfig(path=url), 3)
    next(run)
    held = threading.Event()
    faults.on_put = lambda _: held.wait(20)  # type: ignore[assignment]
    next(run)
    result = CliRunner().invoke(main, ["recover", url])
    held.set()
    assert result.exit_code == 2
    assert "is being recorded and uploaded now" in result.output or "has not uploaded everything" in result.output
    list(run)
    assert open_dump(url).steps == [0, 1, 2]


def test_a_spool_may_be_named(faults: Faults, url: str, tmp_path: Path) -> None:
    faults.on_put = lambda number: setattr(faults, "denies", number > 1)  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="files are not uploaded to s3://.*permission is denied"):
        list(train(DumpConfig(path=url, spool=tmp_path / "spool", on_error="warn"), 2))
    faults.on_put, faults.denies = None, False
    assert list((tmp_path / "spool").rglob("index.msgpack"))
    assert not list(Path(tempfile.gettempdir()).glob("aten_dump-spool*/*"))
    result = CliRunner().invoke(main, ["recover", url, "--spool", str(tmp_path / "spool")])
    assert result.exit_code == 0, result.output
    assert open_dump(url).steps == [0, 1]
    assert CliRunner().invoke(main, ["recover", str(tmp_path), "--spool", "x"]).exit_code == 2


RANKS = """
import torch, torch.distributed as dist
from aten_dump import DumpConfig, DumpMode
import sys
dist.init_process_group("gloo")
grad = torch.ones(4) * dist.get_rank()
with DumpMode(DumpConfig(path=sys.argv[1], data="tensor")) as dump:
    for _ in range(3):
        dist.all_reduce(grad.add(1))
        dump.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_one_machine_share_a_spool(faults: Faults, url: str, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, tmp_path / "ranks.py", url], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "uploads fail" not in done.stderr
    found = open_dump(url)
    assert ([found.step(step).ranks for step in found.steps], found.problems) == ([[0, 1]] * 3, [])
    assert not spool_folder(UrlPath(url)).joinpath("run.json").exists()


LONG_STEP = """
import sys, time, torch
from aten_dump import DumpConfig, DumpMode
numbers = torch.zeros(20_000)
with DumpMode(DumpConfig(path=sys.argv[1], data="tensor", level="aten", shard_bytes=1 << 16)) as dump:
    for _ in range(6):
        numbers = numbers + 1
    dump.flush()
    print("on file", flush=True)
    time.sleep(60)
"""


def test_a_step_that_is_killed_with_shards_on_both_sides_is_put_together(faults: Faults, url: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    with subprocess.Popen([sys.executable, "-c", LONG_STEP, url], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on file\n"
        while not any("/shard-" in path for path in faults.put_paths()):
            time.sleep(0.01)
        time.sleep(0.2)
        process.kill()
    assert "index.msgpack" in spool_files(url)
    result = CliRunner().invoke(main, ["recover", url])
    assert result.exit_code == 0, result.output
    rank = open_dump(url).rank(0, 0)
    assert rank.state == "interrupted"
    for number in range(6):
        assert torch.equal(rank.tensor(f"Aten.add.{number}.forward.output.0"), torch.full((20_000,), number + 1.0))
    assert verify(rank.directory) == []
