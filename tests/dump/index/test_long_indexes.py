"""Long indexes: rows that are decoded when looked at say the same as all of them decoded, whatever is kept."""

from __future__ import annotations

from pathlib import Path

import msgpack
import numpy as np
import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.cli.main import main
from aten_dump.dump.index.typed_rows import Groups, Places
from aten_dump.errors import FormatError
from aten_dump.store import raw_rows
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.raw_rows import MadeRows, split_records
from tests.dump.repeating import repeat_recording
from tests.store.recording import call, header


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step, and what it takes as records 60 times over."""
    root = tmp_path_factory.mktemp("scale")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path=root / "once", data="full"), model=model) as dump:
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        dump.step()
    folder = root / "once" / "step0" / "rank0"
    repeat_recording(folder, root / "often", 60 * len(read_index(folder).rows[r.CALL]), copies=3)
    return root


def plain_rows(folder: Path) -> list[tuple[object, ...]]:
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False)
    unpacker.feed((folder / "index.msgpack").read_bytes())
    return list(unpacker)


@pytest.mark.parametrize("kept", [0, 7, 1 << 17])
def test_rows_and_columns_are_those_of_a_plain_decode(
    recorded: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_rows, "KEPT_ROWS", kept)
    folder = recorded / "often" / "step0" / "rank0"
    plain, data = plain_rows(folder), read_index(folder)
    for kind, record in r.RECORD_TYPES.items():
        fields = record._field_defaults  # type: ignore[attr-defined]
        size = len(record._fields)  # type: ignore[attr-defined]
        expected = [
            row + tuple(fields.values())[len(row) - size :] if len(row) < size else row
            for row in plain
            if row[0] == kind
        ]
        rows = data.rows[kind]
        assert list(rows) == expected
        assert [rows[at] for at in range(len(rows) - 1, -1, -1)] == expected[::-1]
        integers = 0
        while integers < size and all(type(row[integers]) in (int, type(None)) for row in expected):
            integers += 1
        for field, column in enumerate(rows.columns(*range(integers)) if integers else ()):
            assert column.tolist() == [row[field] or 0 for row in expected], (record, field)


def test_a_call_is_found_by_its_name_and_no_other_text(recorded: Path) -> None:
    rank = open_dump(recorded / "often").rank(0, 0)
    names = list(rank.links.names)
    assert len(names) == len(set(names)) == len(rank.calls) >= 60 * 30
    assert [rank[name].name for name in names] == names
    assert [rank[name].id for name in names] == [one.id for one in rank.calls]
    name = next(name for name in names if name.startswith("Aten.") and name.endswith(".3.forward"))
    assert name in rank
    for other in (f"{name}.0", f"{name}.1", f"{name}.x", name.replace(".3.", f".{10**30}."), name.replace(".3.", ".03."), name.replace(".3.", ".٣."),
                  name.replace("forward", "optimizer"), name[:-1], name[5:], f"{name}.", "", ".", "3.forward"):  # fmt: skip
        assert other not in rank, other


def test_a_name_whose_api_looks_like_the_end_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    with open(tmp_path / "step0" / "rank0" / "index.msgpack", "wb") as file:
        file.write(msgpack.packb(header()))
        for op, api in enumerate(("m.0", "m.0.1.forward", "m"), 1):
            file.write(msgpack.packb(r.Op(r.OP, op, 2, "M", "Module", api, [])))
        for number, (op, n, repeat) in enumerate(((1, 1, 0), (1, 1, 2), (2, 2, 0), (3, 0, 0), (3, 1, 2)), 1):
            file.write(msgpack.packb(call(number, op=op, n=n, repeat=repeat)))
        size = file.tell()
        file.write(msgpack.packb(r.Check(r.CHECK, size, b"")))
    _mend_check(tmp_path / "step0" / "rank0" / "index.msgpack", size)
    rank = open_dump(tmp_path).rank(0, 0)
    assert [one.name for one in rank.calls] == [
        "Module.m.0.1.forward", "Module.m.0.1.forward.2", "Module.m.0.1.forward.2.forward", "Module.m.0.forward",
        "Module.m.1.forward.2",
    ]  # fmt: skip
    assert [rank[one.name].id for one in rank.calls] == [1, 2, 3, 4, 5]


def _mend_check(path: Path, size: int) -> None:
    import xxhash

    data = path.read_bytes()[:size]
    path.write_bytes(data + msgpack.packb(r.Check(r.CHECK, size, xxhash.xxh3_64_digest(data))))


def test_relations_are_those_that_each_call_tells(recorded: Path) -> None:
    rank = open_dump(recorded / "often").rank(0, 0)
    children: dict[int, list[int]] = {}
    belonging: dict[int, list[int]] = {}
    for one in rank.calls:
        children.setdefault(one.record.parent, []).append(one.id)
        if one.record.forward:
            belonging.setdefault(one.record.forward, []).append(one.id)
    assert [one.id for one in rank.roots] == children[0]
    assert len(belonging) >= 60
    for one in rank.calls:
        assert [child.id for child in one.children] == children.get(one.id, [])
        assert [other.id for other in one.backward] == belonging.get(one.id, [])
    kinds = [one.kind for one in rank.calls]
    assert rank.calls_by_kind() == {kind: kinds.count(kind) for kind in set(kinds)}
    assert [one.id for one in rank.calls.filter(kind="aten", phase="backward", name=".1")] == [
        one.id for one in rank.calls if one.kind == "aten" and one.phase == "backward" and ".1" in one.name
    ]


def test_values_facts_and_tensors_of_every_round_are_those_of_the_first(recorded: Path) -> None:
    once, often = (open_dump(recorded / name).rank(0, 0) for name in ("once", "often"))
    calls, outputs = len(once.calls), 0
    for at in range(0, 60 * calls, 59):
        one, other = once.calls[at % calls], often.calls[at]
        assert other.op == one.op
        for (slot, ours), (_, theirs) in zip(other.output_values(), one.output_values(), strict=True):
            assert (ours.shape, ours.stats, ours.hash, ours.has_data) == (
                theirs.shape,
                theirs.stats,
                theirs.hash,
                theirs.has_data,
            )
            if ours.has_data:
                found = often.tensor(f"{other.name}.{slot}")
                assert torch.equal(found.nan_to_num(), theirs.tensor().nan_to_num())
                outputs += 1
    assert outputs > 20


def test_a_field_that_is_no_integer_is_a_format_error() -> None:
    data = msgpack.packb(header()) + msgpack.packb(call(1)._replace(op="aten::relu"))
    rows, _ = split_records(data, "the index")
    with pytest.raises(FormatError, match="field 3 is not an integer"):
        rows[r.CALL].column(4)
    assert rows[r.CALL].column(2).tolist() == [0]


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, -1, -32, -33, -128, -129, -(2**15) - 1, -(2**31) - 1, -(2**63), None])  # fmt: skip
def test_integers_of_any_size_in_columns(number: int | None) -> None:
    data = b"".join(msgpack.packb(call(k, sequence_nr=number if k == 2 else k, stack=k * 1000)) for k in range(1, 5))
    rows, _ = split_records(data, "the index")
    assert rows[r.CALL].columns(10, 11)[0].tolist() == [1, number or 0, 3, 4]
    assert rows[r.CALL].column(11).tolist() == [1000, 2000, 3000, 4000]


@pytest.mark.parametrize(
    "ids", [[], [1, 2, 3], [7, 5, 6], [3, 1, 3, 2], [5, 10**12, 6], [-4, -5], [10**12, 10**12 + 1]]
)
def test_places_are_a_dict_of_the_last_positions(ids: list[int]) -> None:
    expected = {id: position for position, id in enumerate(ids)}
    places = Places(np.array(ids, np.int64))
    assert dict(places) == expected
    assert len(places) == len(expected)
    assert list(places.in_order()) == sorted(expected)
    assert [ids[at] for at in places.positions()] == list(expected)
    for other in (0, 4, -1, 8, 10**13):
        assert (other in places) == (other in expected)
        assert places.get(other) == expected.get(other)


def test_groups_keep_positions_in_order() -> None:
    groups = Groups(np.array([2, 0, 2, 9, 0, 2], np.int64))
    assert {key: list(group) for key, group in groups.items()} == {0: [1, 4], 2: [0, 2, 5], 9: [3]}
    assert list(groups.get(3, ())) == []
    assert len(Groups(np.empty(0, np.int64))) == 0


def test_made_rows_have_the_columns_of_read_ones() -> None:
    calls = [call(3), call(1, sequence_nr=None)]
    rows, _ = split_records(b"".join(map(msgpack.packb, calls)), "the index")
    assert [c.tolist() for c in MadeRows(calls).columns(1, 10)] == [c.tolist() for c in rows[r.CALL].columns(1, 10)]


def test_ls_of_many_folders_reads_only_their_ends(
    tmp_path: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = recorded / "once" / "step0" / "rank0" / "index.msgpack"
    content = source.read_bytes()
    broken = content[:3000] + b"\0" * 100 + content[3100:]  # ls does not look there
    for step in range(40):
        folder = tmp_path / f"step{step}" / "rank0"
        folder.mkdir(parents=True)
        (folder / "index.msgpack").write_bytes(broken if step else content[:-30])
    with pytest.raises(SystemExit) as ended:
        main(["ls", str(tmp_path), "--no-details"])
    assert ended.value.code == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line and line[0].isdecimal()]
    assert [row[2] for row in rows if len(row) > 6 and row[1] == "0"] == ["interrupted"] + ["complete"] * 39
