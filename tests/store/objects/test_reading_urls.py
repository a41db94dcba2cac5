"""Dumps in object storage are read by URL: the same answers as from a local copy, few bytes, errors that say why."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.cli.main import main
from aten_dump.dump import rank_at
from aten_dump.errors import AtenDumpError, ConfigError, FormatError, MissingDataError, StoreError
from aten_dump.store.objects.object_store import store_at
from aten_dump.store.objects.ranged_reading import BLOCK_BYTES
from aten_dump.store.objects.url_path import UrlPath, place_of
from tests.object_server import Faults

COMMANDS = [
    ["ls", "DUMP"],
    ["ls", "DUMP", "--format", "json"],
    ["show", "DUMP", "--depth", "2"],
    ["stats", "DUMP"],
    ["saved", "DUMP"],
    ["check", "DUMP"],
    ["compare", "DUMP", "DUMP"],
    ["nonfinite", "DUMP"],
    ["replay", "DUMP"],
    ["verify", "DUMP"],
    ["hang", "DUMP"],
    ["weights", "DUMP", "DUMP"],
    ["env", "DUMP"],
    ["export", "DUMP", "--to", "npy", "--out", "OUT"],
    ["report", "DUMP", "--output", "OUT"],
]


def record(path: Path | str, steps: int = 2) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            dump.step()


def upload(folder: Path, url: str) -> None:
    """Copy a dump as any tool would."""
    place = place_of(url)
    assert isinstance(place, UrlPath)
    for file in folder.rglob("*"):
        if file.is_file():
            place.store.put(place.joinpath(*file.relative_to(folder).parts).key, file.read_bytes())
    place.forget()


def answer(words: list[str], dump: str, out: Path) -> tuple[int, str]:
    named = [{"DUMP": dump, "OUT": str(out)}.get(word, word) for word in words]
    result = CliRunner().invoke(main, named)
    lines = [line for line in result.output.splitlines() if not line.startswith("wrote ")]  # the page names the dump
    return result.exit_code, "\n".join(lines).replace(dump, "DUMP").replace(str(out), "OUT")


def test_commands_answer_of_a_url_as_of_a_local_copy(faults: Faults, url: str, tmp_path: Path) -> None:
    local = tmp_path / "run"
    record(local)
    upload(local, url)
    for number, words in enumerate(COMMANDS):
        here = answer(words, str(local), tmp_path / f"here{number}")
        code, text = answer(words, url, tmp_path / f"there{number}")
        there = code, text.replace(str(local), "DUMP")  # as run.json has it
        assert there == here, words
        assert here[0] == 0, (words, here)


def test_a_dump_of_a_url_is_passed_to_processes_and_compared_with_a_local_one(
    faults: Faults, url: str, tmp_path: Path
) -> None:
    local = tmp_path / "run"
    record(local)
    upload(local, url)
    rank = pickle.loads(pickle.dumps(open_dump(url).rank(1, 0)))
    assert str(rank.directory) == f"{url}/step1/rank0"
    assert torch.equal(
        rank.tensor("Aten.addmm.0.forward.output.0"),
        open_dump(local).rank(1, 0).tensor("Aten.addmm.0.forward.output.0"),
    )
    result = CliRunner().invoke(main, ["compare", url, str(local)])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_tasks_of_other_processes_open_urls(faults: Faults, url: str, tmp_path: Path) -> None:
    record(tmp_path / "run")
    upload(tmp_path / "run", url)
    result = CliRunner().invoke(main, ["compare", url, str(tmp_path / "run"), "--jobs", "2"])
    assert result.exit_code == 0, result.output


def test_one_tensor_takes_its_own_bytes_and_the_second_look_takes_none(
    faults: Faults, url: str, tmp_path: Path
) -> None:
    local, numbers = tmp_path / "run", torch.arange(2 * BLOCK_BYTES // 8)
    with DumpMode(DumpConfig(path=local, data="tensor", level="aten")):
        for _ in range(6):
            numbers = numbers + 1
    upload(local, url)
    faults.forget()
    rank = rank_at(url, 0, 0)
    found = rank.tensor("Aten.add.2.forward.output.0")
    assert torch.equal(found, torch.arange(2 * BLOCK_BYTES // 8) + 3)
    read = sum(nbytes for _, path, nbytes in faults.requests if "shard" in path)
    assert 2 * BLOCK_BYTES <= read <= 7 * BLOCK_BYTES, "of 14 blocks: the tensor's, and some ahead"
    assert not any("step0/rank0" not in path and "prefix" not in path for path in faults.got()), "no other folder"
    assert faults.most_at_once > 1
    faults.forget()
    assert torch.equal(rank.tensor("Aten.add.2.forward.output.0"), found)
    assert not faults.got()


def test_requests_wait_for_each_other_in_parallel(faults: Faults, url: str, tmp_path: Path) -> None:
    local, numbers = tmp_path / "run", torch.zeros(8 * BLOCK_BYTES // 4)
    with DumpMode(DumpConfig(path=local, data="tensor", level="aten")):
        numbers.add(1)
    upload(local, url)
    faults.delay_s = 0.05
    faults.forget()
    assert open_dump(url).rank(0, 0).tensor("Aten.add.0.forward.output.0").sum() == 8 * BLOCK_BYTES // 4
    assert faults.most_at_once >= 4
    assert max(Counter(faults.got()).values()) <= 30, "blocks, not pieces of them"


def test_reading_outlives_a_server_that_fails_now_and_then(faults: Faults, url: str, tmp_path: Path) -> None:
    local = tmp_path / "run"
    record(local)
    upload(local, url)
    faults.error_rate = 0.2
    assert answer(["verify", "DUMP"], url, tmp_path) == answer(["verify", "DUMP"], str(local), tmp_path)


def test_what_is_missing_damaged_or_replaced_is_said(faults: Faults, url: str, tmp_path: Path) -> None:
    local = tmp_path / "run"
    record(local, steps=1)
    upload(local, url)
    place, name = UrlPath(url), "Aten.addmm.0.forward.output.0"
    shard = place / "step0" / "rank0" / "shard-00000.safetensors"
    whole = bytes(place.store.get(shard.key))

    def put(data: bytes) -> None:
        place.store.put(shard.key, data)
        place.forget()

    put(whole[:-1000] + bytes(1000))
    assert answer(["verify", "DUMP"], url, tmp_path)[0] == 1
    put(whole[:2000])
    assert answer(["verify", "DUMP"], url, tmp_path)[0] == 1
    with pytest.raises((MissingDataError, FormatError)):
        open_dump(url).rank(0, 0).tensor(name)
    place.store.delete([shard.key])
    place.forget()
    with pytest.raises(MissingDataError, match=r"shard-00000\.safetensors does not exist"):
        open_dump(url).rank(0, 0).tensor(name)
    put(whole)
    rank = open_dump(url).rank(0, 0)
    assert len(rank.calls)
    place.store.put(shard.key, whole[::-1])
    with pytest.raises(AtenDumpError, match="replaced while it was read"):
        rank.tensor(name)


def test_errors_say_what_to_do(faults: Faults, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"cannot open dump s3://.*does not exist"):
        open_dump(url)
    with pytest.raises(StoreError, match=r"s3://no-such-bucket.*the bucket does not exist: make it first"):
        open_dump("s3://no-such-bucket/run")
    with pytest.raises(ConfigError, match=r"ftp://x/run.*allowed: a local path, s3://bucket/folder"):
        open_dump("ftp://x/run")
    with pytest.raises(ConfigError, match="names no folder"):
        open_dump("s3://")
    faults.denies = True
    with pytest.raises(StoreError, match=r"permission is denied.*list, get, put and delete"):
        open_dump(url)
    faults.denies, faults.is_down = False, True
    monkeypatch.setattr("aten_dump.store.objects.object_store._RETRIES", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"cannot be reached: see to the network, and to AWS_ENDPOINT_URL"):
        open_dump(url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"cannot list s3://"):
        open_dump(url)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setenv("AWS_REGION", "elsewhere")  # another store is made
    with pytest.raises(ConfigError, match=r"needs obstore: pip install 'aten-dump\[remote\]'"):
        open_dump(url)


def test_credentials_that_are_set_later_count(faults: Faults, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = store_at("s3://bucket")
    assert store_at("s3://bucket") is before
    monkeypatch.setenv("AWS_SESSION_TOKEN", "renewed")
    assert store_at("s3://bucket") is not before


def test_a_url_is_a_path_that_prints_as_one(faults: Faults, url: str, tmp_path: Path) -> None:
    place = place_of(Path(url))  # as the command line has it, with one slash
    assert isinstance(place, UrlPath)
    inner = place / "step0" / "rank0"
    assert (str(inner), os.fspath(inner), repr(str(inner.parent.parent))) == (
        f"{url}/step0/rank0", f"{url}/step0/rank0", repr(url),
    )  # fmt: skip
    assert type(pickle.loads(pickle.dumps(inner))) is UrlPath
    assert inner == UrlPath(url) / "step0/rank0"
    assert place.absolute() is place.resolve() is place
    assert not inner.exists()
    assert place_of("./s3://bucket") == Path("./s3:/bucket")
    upload_time = time.time()
    place.store.put((inner / "index.msgpack").key, b"12345")
    place.forget()
    found = (inner / "index.msgpack").stat()
    assert found.st_size == 5
    assert abs(found.st_mtime - upload_time) < 60
    assert [one.name for one in place.iterdir()] == ["step0"]


def test_steps_that_are_read_in_order_are_fetched_side_by_side(faults: Faults, url: str, tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=tmp_path / "run")) as dump:
        for _ in range(24):
            torch.ones(2).exp()
            dump.step()
    upload(tmp_path / "run", url)
    faults.forget()
    faults.delay_s = 0.02
    assert len([rank.summary() for rank in open_dump(url).all_ranks()]) == 24
    assert faults.most_at_once >= 4
    assert max(Counter(faults.got()).values()) == 1, "each once"
    faults.forget()
    open_dump(url).rank(20, 0).summary()
    assert not [path for path in faults.got() if "index" in path], "it was read before"
