"""A call is found by its name and by no other text, without making the names."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from aten_dump.dump import open_dump
from aten_dump.dump.index.links import CallNames
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.store.recording import call, header


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


def named(builder: Builder) -> CallNames:
    return CallNames(open_dump(builder.finish()).rank(0, 0).tables)


def test_positions_of_names(builder: Builder) -> None:
    exp, sin = (builder.op("aten", f"aten::{name}", "Aten", name) for name in ("exp", "sin"))
    out = builder.op("aten", "aten::exp.out", "Aten", "exp")  # another op of the same api
    for op, n, phase, repeat in ((exp, 0, "forward", 0), (out, 1, "forward", 0), (sin, 0, "forward", 0), (exp, 0, "backward", 0), (exp, 0, "backward", 2)):  # fmt: skip
        builder.call(op, n=n, phase=phase, repeat=repeat)
    names = named(builder)
    expected = ["Aten.exp.0.forward", "Aten.exp.1.forward", "Aten.sin.0.forward", "Aten.exp.0.backward", "Aten.exp.0.backward.2"]  # fmt: skip
    assert list(names) == expected and len(names) == 5
    assert [names[name] for name in expected] == [0, 1, 2, 3, 4]


def test_of_equal_names_the_last_counts(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    for _ in range(3):
        builder.call(op)
    assert named(builder)["Aten.exp.0.forward"] == 2


@pytest.mark.parametrize(
    "name",
    ["", ".", "Aten.exp", "Aten.exp.0", "Aten.exp.0.Forward", "Aten.exp.1.forward", "Aten.exp.00.forward", "Aten.exp.0.forward.0",
     "Aten.exp.0.forward.1", "Aten.exp.-1.forward", f"Aten.exp.{10**30}.forward", "Aten.exp.\u0660.forward", "exp.0.forward", "Aten.exp.0.backward"],
)  # fmt: skip
def test_no_other_text_is_a_name(builder: Builder, name: str) -> None:
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"))
    names = named(builder)
    assert names.get(name) is None and name not in names
    with pytest.raises(KeyError):
        names[name]


def test_no_calls_no_names(builder: Builder) -> None:
    names = named(builder)
    assert len(names) == 0 and "Aten.exp.0.forward" not in names
