"""A full disk, an unwritable path, an existing dump: clear errors, and training untouched where asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.errors import StoreError
from aten_dump.store.checking.verification import verify
from aten_dump.store.recovery import recover
from tests.checkout import ROOT
from tests.devices import here
from tests.forked import run
from tests.sampling import every_second


def train(folder: Path, **options: Any) -> dict[str, Any]:
    given = {"run": "measured", "model": "resnet", "device": here().type} | options
    ended = run(["-m", "tests.promises.training", json.dumps(given)], folder / "said")
    assert ended.code == 0, ended.said
    return json.loads(ended.said.splitlines()[-1])


@pytest.fixture(scope="module")
def bare_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("bare"))["digest"]


@pytest.mark.parametrize("data", every_second(["tensor", "full", "structure"]))
@pytest.mark.parametrize("file_bytes", [0, 40_000])
def test_full_disk_with_warn_leaves_training_untouched(
    tmp_path: Path, bare_digest: str, data: str, file_bytes: int
) -> None:
    report = train(
        tmp_path, config={"path": str(tmp_path / "dump"), "data": data, "on_error": "warn"}, file_bytes=file_bytes
    )
    assert report.get("digest") == bare_digest, report
    assert len(report["warnings"]) == 1, report["warnings"]
    assert str(tmp_path / "dump") in report["warnings"][0]
    assert report["modes"] == [0, 0]


@pytest.mark.parametrize("data", every_second(["tensor", "structure"]))
@pytest.mark.parametrize("file_bytes", [0, 40_000])
def test_full_disk_with_raise_is_a_store_error(tmp_path: Path, data: str, file_bytes: int) -> None:
    report = train(
        tmp_path, config={"path": str(tmp_path / "dump"), "data": data, "on_error": "raise"}, file_bytes=file_bytes
    )
    _name, message, bases = report["error"]
    assert "StoreError" in bases, report
    assert str(tmp_path / "dump") in message and ("large" in message.lower() or "space" in message.lower()), message
    assert report["modes"] == [0, 0]


def test_no_error_without_a_limit(tmp_path: Path, bare_digest: str) -> None:
    report = train(tmp_path, config={"path": str(tmp_path / "dump"), "data": "full"})
    assert (report["digest"], report["warnings"], report.get("error")) == (bare_digest, [], None)


def test_what_was_written_before_the_disk_was_full_can_be_read(tmp_path: Path) -> None:
    config = {"path": str(tmp_path / "dump"), "data": "tensor", "on_error": "warn"}
    report = train(tmp_path, model="gpt2", config=config, file_bytes=1_000_000)
    assert report["warnings"]
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert rank.missing
    assert sum(value.has_data for value in rank.values) > 20
    assert sum(value.tensor().numel() for value in list(rank.values)[:40] if value.has_data) > 0


CUT_SHORT = """
import resource, signal, sys, torch
from aten_dump import DumpConfig, DumpMode
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
large = [torch.full((500_000,), float(i)) for i in range(5)]
try:
    with DumpMode(DumpConfig(path=sys.argv[1], data="tensor")) as dump:
        large[0] + 1
        dump.step()
        dump.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))
        for tensor in large:
            tensor.view(-1)
        dump.step()
except Exception as error:
    print(type(error).__name__)
"""


def test_what_a_disk_error_has_cut_short_is_fine_once_recovered(tmp_path: Path) -> None:
    """The write of the first shard fails, and a second one, which the index names by then, was never made."""
    was_never_made = False
    for attempt in range(6):  # the thread of the second may be faster
        dump = tmp_path / f"dump{attempt}"
        ended = run(["-c", CUT_SHORT, str(dump)], tmp_path / "said")
        assert ended.said == "StoreError\n", ended.said
        folder = dump / "step1" / "rank0"
        found = recover(folder)
        assert found.changed and found.missing_shards == found.lost_blobs == verify(folder) == []
        assert open_dump(dump).step(1).rank(0).calls
        was_never_made = not (folder / "shard-00001.safetensors").exists()
        if was_never_made:
            break
    assert was_never_made, "else this test shows nothing"


def small_dump(path: str | Path, **config: Any) -> None:
    with DumpMode(DumpConfig(path=path, **config)):
        torch.ones(2).exp()


def test_an_existing_dump_is_refused(tmp_path: Path) -> None:
    small_dump(tmp_path / "dump", data="tensor")
    before = {p: p.read_bytes() for p in (tmp_path / "dump").rglob("*") if p.is_file()}
    with pytest.raises(StoreError, match="overwrite=True") as caught:
        small_dump(tmp_path / "dump")
    assert str(tmp_path / "dump") in str(caught.value)
    assert {p: p.read_bytes() for p in (tmp_path / "dump").rglob("*") if p.is_file()} == before
    assert torch._C._len_torch_dispatch_stack() == 0


def test_an_existing_dump_is_warned_of_once_where_the_program_must_go_on(tmp_path: Path) -> None:
    small_dump(tmp_path / "dump")
    before = (tmp_path / "dump" / "step0" / "rank0" / "index.msgpack").read_bytes()
    with pytest.warns(UserWarning, match="overwrite") as told:
        small_dump(tmp_path / "dump", on_error="warn")
    assert len(told) == 1
    assert (tmp_path / "dump" / "step0" / "rank0" / "index.msgpack").read_bytes() == before


def test_overwrite_replaces_all_of_the_old_dump(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor")) as dump:
        for _ in range(3):
            torch.ones(2).exp()
            dump.step()
    with DumpMode(DumpConfig(path=tmp_path / "dump", overwrite=True)):
        torch.ones(2).log()
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [0]
    ops = [c.op for c in dump.step(0).rank(0).calls]
    assert "aten::log" in ops and "aten::exp" not in ops
    assert not list((tmp_path / "dump").rglob("shard-*"))


def test_overwrite_does_not_remove_what_is_not_a_dump(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "model.pt").write_text("weights")
    try:
        small_dump(tmp_path / "precious", overwrite=True)
    except StoreError:
        pass
    assert (tmp_path / "precious" / "model.pt").read_text() == "weights"


@pytest.mark.parametrize("name", ["with space", "ünïcode 数据", "a'quote", "deep/er/still", "100%", "new\nline"])
def test_odd_paths(tmp_path: Path, name: str) -> None:
    small_dump(tmp_path / name, data="tensor")
    rank = open_dump(tmp_path / name).step(0).rank(0)
    assert rank.tensor("Aten.exp.0.forward.input.0").tolist() == [1, 1]


def test_relative_path_is_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes its working directory does not scatter its dump."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with DumpMode(DumpConfig(path="dump")) as dump:
        torch.ones(2).exp()
        dump.step()
        os.chdir(tmp_path / "elsewhere")
        torch.ones(2).exp()
        dump.step()
    assert list(open_dump(tmp_path / "dump").steps) == [0, 1]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_path_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="file"):
        small_dump(tmp_path / "file" / "dump")
    with pytest.raises(StoreError, match="file"):
        small_dump(tmp_path / "file")
    assert torch._C._len_torch_dispatch_stack() == 0


def test_unwritable_path() -> None:
    """/proc takes no directories, not even from root."""
    with pytest.raises(StoreError, match="/proc/dump"):
        small_dump("/proc/dump")
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.filterwarnings("ignore")
def test_unwritable_path_with_warn_lets_the_program_run() -> None:
    ran = []
    with DumpMode(DumpConfig(path="/proc/dump", on_error="warn")) as dump:
        ran.append(torch.ones(2).exp())
        dump.step()
    assert len(ran) == 1


RECORDS = """
import itertools, sys, torch
from aten_dump import DumpConfig, DumpMode
with DumpMode(DumpConfig(path=sys.argv[1], overwrite=True, data="tensor")) as dump:
    for line in itertools.chain(["begin"], sys.stdin):
        torch.ones(3).mul(float(len(line)))
        dump.step()
        dump.flush()
        print("recorded", flush=True)
"""


def test_what_another_process_records_is_not_replaced(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", RECORDS, str(tmp_path / "dump")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None and child.stdout.readline() == "recorded\n"
    for overwrite in (True, False):
        with pytest.raises(StoreError, match="is being recorded now"):
            small_dump(tmp_path / "dump", overwrite=overwrite)
    child.communicate("another step\n", timeout=60)
    assert child.returncode == 0
    dump = open_dump(tmp_path / "dump")
    assert dump.steps[:2] == [0, 1] and all(not rank.missing for rank in dump.all_ranks())
    assert not list((tmp_path / "dump").glob(".*"))
    small_dump(tmp_path / "dump", overwrite=True)  # it has ended
    assert [call.op for call in open_dump(tmp_path / "dump").step(0).rank(0).calls][-1] == "aten::exp"


def test_what_a_killed_process_has_recorded_is_replaced(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", RECORDS, str(tmp_path / "dump")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None and child.stdout.readline() == "recorded\n"
    child.kill()
    child.communicate()
    small_dump(tmp_path / "dump", overwrite=True)
    assert list(open_dump(tmp_path / "dump").steps) == [0]
