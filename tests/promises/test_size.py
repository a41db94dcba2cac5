"""Promises 2 and 5 on the gpt2 step of d=256, 4 layers, vocabulary 8192, batch 4 x 128: nothing is stored twice, and stock readers open the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import safetensors
import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import assert_same, calls, values
from tests.capture.oracle import Contents
from tests.models import seed_all, single_thread

MIB = 1 << 20


def gpt2_step() -> Iterator[torch.nn.Module]:
    from transformers import GPT2Config, GPT2LMHeadModel

    seed_all(0)
    config = GPT2Config(
        n_embd=256,
        n_layer=4,
        n_head=4,
        n_positions=128,
        vocab_size=8192,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(0, 8192, (4, 128))
    yield model
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


@pytest.fixture(scope="module")
def dump_and_bytes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    with single_thread():
        step = gpt2_step()
        next(step)
        with Contents() as contents:
            next(step, None)
        path = tmp_path_factory.mktemp("gpt2") / "dump"
        step = gpt2_step()
        with DumpMode(DumpConfig(path=str(path), data="tensor"), model=next(step)) as dump:
            next(step, None)
            dump.step()
    return path, contents.nbytes


def test_at_most_a_tenth_more_than_the_distinct_contents(dump_and_bytes: tuple[Path, int]) -> None:
    path, distinct = dump_and_bytes
    on_disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert distinct > 150 * MIB
    assert on_disk <= 1.1 * distinct, (
        f"{on_disk / MIB:.1f} MiB on disk for {distinct / MIB:.1f} MiB of distinct contents"
    )


def test_and_not_less_than_all_of_it(dump_and_bytes: tuple[Path, int]) -> None:
    """The bound above means nothing if contents are left out: every value of an aten call can be read."""
    path, _ = dump_and_bytes
    rank = open_dump(str(path)).step(0).rank(0)
    read = 0
    for call in calls(rank, kind="aten")[::7]:
        for value in values((call.inputs, call.outputs)):
            if not value.undefined:
                assert value.tensor().shape == value.shape
                read += 1
    assert read > 150


def test_at_most_four_files(dump_and_bytes: tuple[Path, int]) -> None:
    files = sorted(p.name for p in (dump_and_bytes[0] / "step0" / "rank0").iterdir())
    assert len(files) <= 4, files
    assert "index.msgpack" in files and all(name.endswith((".msgpack", ".safetensors")) for name in files)


def test_stock_safetensors_opens_the_shards(dump_and_bytes: tuple[Path, int]) -> None:
    path, _ = dump_and_bytes
    total = 0
    for shard in (path / "step0" / "rank0").glob("*.safetensors"):
        with safetensors.safe_open(shard, "pt") as file:
            names = list(file.keys())
            total += sum(file.get_tensor(name).nbytes for name in names)
        assert names
    assert total > 150 * MIB


def test_stock_msgpack_opens_the_index(dump_and_bytes: tuple[Path, int]) -> None:
    path, _ = dump_and_bytes
    with open(path / "step0" / "rank0" / "index.msgpack", "rb") as file:
        items = list(msgpack.Unpacker(file, strict_map_key=False))
    assert len(items) > 2000
    assert all(isinstance(item, list) and isinstance(item[0], int) for item in items)


def test_what_stock_readers_see_is_what_ours_gives(dump_and_bytes: tuple[Path, int]) -> None:
    """The blob of a compact float value, read by safetensors alone, is its tensor."""
    from aten_dump.store.records import BLOB, DATA

    path, _ = dump_and_bytes
    with open(path / "step0" / "rank0" / "index.msgpack", "rb") as file:
        items = list(msgpack.Unpacker(file, strict_map_key=False))
    blobs = {item[1]: item for item in items if item[0] == BLOB}
    data = {item[1]: item for item in items if item[0] == DATA}
    rank = open_dump(str(path)).step(0).rank(0)
    compared = 0
    for call in calls(rank, kind="aten", op="aten::addmm")[:5]:
        value = call.outputs
        _, _, blob, offset, _ = data[value.id][:5]
        with safetensors.safe_open(path / "step0" / "rank0" / f"shard-{blobs[blob][2]:05d}.safetensors", "pt") as stock:
            found = stock.get_tensor(str(blob)).flatten()[offset // 4 :][: value.shape.numel()]
        assert_same(value.tensor().flatten(), found)
        compared += 1
    assert compared == 5


def test_files_have_the_mode_of_the_umask(dump_and_bytes: tuple[Path, int]) -> None:
    import os

    umask = os.umask(0)
    os.umask(umask)
    for file in (dump_and_bytes[0] / "step0" / "rank0").iterdir():
        assert file.stat().st_mode & 0o777 == 0o666 & ~umask, file.name


def test_small_shards_are_many(tmp_path: Path) -> None:
    """shard_bytes begins new shards, and every value is still there."""
    xs = [torch.randn(1000) for _ in range(100)]
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor", shard_bytes=1 << 16, level="aten")):
        for x in xs:
            x.exp()
    assert len(list((tmp_path / "dump" / "step0" / "rank0").glob("shard-*.safetensors"))) > 5
    for x, call in zip(xs, calls(open_dump(str(tmp_path / "dump")).step(0).rank(0), op="aten::exp"), strict=True):
        assert_same(x, call.inputs[0][0].tensor())
        assert_same(x.exp(), call.outputs.tensor())


def test_max_bytes_stops_bytes_not_records(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor", max_bytes=20_000, level="aten")):
        for _ in range(50):
            torch.ones(1000).exp()
    shards = sum(file.stat().st_size for file in (tmp_path / "dump").rglob("shard-*"))
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    exps = calls(rank, op="aten::exp")
    assert len(exps) == 50
    assert_same(torch.ones(1000), exps[0].inputs[0][0].tensor())
    readable = sum(call.outputs.has_data for call in exps)
    assert 0 < readable <= 5
    assert shards <= 20_000 + 70_000  # and the room kept for the header
    assert rank.notes
