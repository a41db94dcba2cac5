"""What hypothesis makes up for an index, the header of a shard, run.json and a config: right data, or an error of ours.

It searches among values that differ in structure and shrinks what it finds. `ATEN_DUMP_FUZZ` says how many examples
each test takes: few with the tests, thousands in `make torture`.
"""

from __future__ import annotations

import json
import os
import random
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aten_dump import DumpConfig
from aten_dump.dump import open_dump
from aten_dump.errors import AtenDumpError, ConfigError
from aten_dump.store import records as r
from aten_dump.store.run_json import RUN_FILE, read_run
from aten_dump.store.shards import read_header
from tests.torture.__main__ import DUMPS
from tests.torture.changing import INTERESTING, copied, records_of, signed
from tests.torture.looking import look_at

EXAMPLES = int(os.environ.get("ATEN_DUMP_FUZZ", "8"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES < 100,
    database=None,
    suppress_health_check=list(HealthCheck),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.integers(-3, 40)
    | st.floats()
    | st.text(max_size=12)
    | st.binary(max_size=12)
    | st.sampled_from(INTERESTING)
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from([*DumpConfig.__dataclass_fields__, "dump_path", "task", "x"])
configs = st.dictionaries(
    fields, values | st.sampled_from(["all", "0|5-8", "mix", "full", 1 << 30, ["mean"]]), max_size=6
)


@pytest.fixture
def folder_of_fuzz() -> Iterator[Path]:
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Path(name)


@fuzzed
@given(data=st.data())
def test_records_of_any_fields(folder_of_fuzz: Path, data: st.DataObject) -> None:
    """Records of a step, some with other fields and some made up, under right checksums."""
    dump = copied(DUMPS[0], folder_of_fuzz / "dump")
    index = dump / "step0" / "rank0" / "index.msgpack"
    rows = records_of(index)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(rows) - 1))
        row = rows[at]
        if data.draw(st.booleans()):
            row[data.draw(st.integers(0, len(row) - 1))] = data.draw(trees)
        else:
            kind = data.draw(st.sampled_from(sorted(r.RECORD_TYPES)) | st.integers(0, 40))
            rows.insert(at, [kind, *data.draw(st.lists(trees, max_size=20))])
    try:
        index.write_bytes(signed(rows))
    except (OverflowError, ValueError, TypeError):  # what msgpack has no form for
        return
    look_at(dump, random.Random(0))


@fuzzed
@given(start=st.integers(0, 4000), noise=st.binary(max_size=200))
def test_bytes_of_an_index(folder_of_fuzz: Path, start: int, noise: bytes) -> None:
    dump = copied(DUMPS[1], folder_of_fuzz / "dump")
    index = sorted(dump.rglob("index.msgpack"))[0]
    whole = index.read_bytes()
    index.write_bytes(whole[:start] + noise + whole[start + len(noise) :])
    look_at(dump, random.Random(0))


@fuzzed
@given(
    header=values.map(json.dumps).map(str.encode) | st.binary(max_size=300),
    claimed=st.integers(0, (1 << 64) - 1) | st.none(),
)
def test_the_header_of_a_shard(folder_of_fuzz: Path, header: bytes, claimed: int | None) -> None:
    shard = folder_of_fuzz / "shard-00000.safetensors"
    shard.write_bytes(struct.pack("<Q", len(header) if claimed is None else claimed) + header + bytes(64))
    try:
        size, found = read_header(shard)
    except AtenDumpError:
        return
    assert size >= 8 and isinstance(found, dict)


@fuzzed
@given(text=values.map(json.dumps).map(str.encode) | st.binary(max_size=300))
def test_run_json(folder_of_fuzz: Path, text: bytes) -> None:
    root = folder_of_fuzz / "run"
    root.mkdir(exist_ok=True)
    (root / RUN_FILE).write_bytes(text)
    try:
        assert isinstance(read_run(root), dict)
    except AtenDumpError:
        pass
    dump = open_dump(root)
    assert dump.steps == [] and isinstance(dump.problems, list)


@fuzzed
@given(
    text=configs.map(json.dumps) | values.map(json.dumps) | st.text(max_size=200),
    suffix=st.sampled_from([".json", ".yaml", ".toml"]),
)
def test_a_config(folder_of_fuzz: Path, text: str, suffix: str) -> None:
    file = folder_of_fuzz / f"config{suffix}"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        assert isinstance(DumpConfig.from_file(file), DumpConfig)
    except ConfigError:
        pass


@fuzzed
@given(data=st.binary(max_size=400) | st.lists(trees, max_size=6).map(lambda rows: b"".join(map(packed, rows))))
def test_an_index_of_anything(folder_of_fuzz: Path, data: bytes) -> None:
    rank = folder_of_fuzz / "dump" / "step0" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    (rank / "index.msgpack").write_bytes(data)
    look_at(folder_of_fuzz / "dump", random.Random(0))


def packed(row: Any) -> bytes:
    try:
        return msgpack.packb(row)
    except (OverflowError, ValueError, TypeError):
        return b"\xc1"
