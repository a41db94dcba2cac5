"""Long indexes: rows that are decoded when looked at say the same as all of them decoded, whatever is kept."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.cli.main import main
from aten_dump.store import raw_rows
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from tests.dump.repeating import repeat_recording


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
    assert ended.value.code == 2
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line and line[0].isdecimal()]
    assert [row[2] for row in rows if len(row) > 6 and row[1] == "0"] == ["interrupted"] + ["unchecked"] * 39
