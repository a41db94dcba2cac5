"""The records of one index by kind and id."""

from __future__ import annotations

import pytest
import torch

from aten_dump.dump.index.source import Source
from aten_dump.dump.index.tables import Tables
from aten_dump.errors import FormatError
from aten_dump.store import records as r
from tests.dump.building import Builder, value


def tables_of(builder: Builder, **options: object) -> Tables:
    builder.finish(**options)  # type: ignore[arg-type]
    return Source(builder.directory).tables("here")


def test_texts_ops_and_names(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    builder.call(op, n=3, phase="backward", repeat=2)
    tables = tables_of(builder)
    assert tables.text(0) == tables.text(999) == ""
    assert tables.op(op).api == "exp"
    assert (tables.call_head(op), tables.render(op, 3, 2, 0)) == ("Aten.exp", "Aten.exp.3.backward")
    assert tables.call_name(tables.calls[0]) == "Aten.exp.3.backward.2"
    with pytest.raises(FormatError, match="here names op 77, which it does not hold; run `aten-dump verify`"):
        tables.op(77)


def test_stacks_are_innermost_first(builder: Builder) -> None:
    stack = builder.stack(("a.py", 1, "f", True), ("b.py", 2, "g", False))
    tables = tables_of(builder)
    assert [str(frame) for frame in tables.stack(stack)] == ["a.py:1 in f", "b.py:2 in g"]
    assert [frame.user for frame in tables.stack(stack)] == [True, False]
    assert tables.stack(0) == tables.stack(999) == []


def test_calls_that_never_ended_are_kept_as_far_as_they_are_known(builder: Builder) -> None:
    op = builder.op("module", "M", "Module", "m")
    builder.open(op, id=1, module="m")
    builder.open(op, id=2, parent=1, n=4, module="m.n")
    builder.call(op, id=1)
    tables = tables_of(builder)
    assert (tables.unfinished, len(tables.calls)) == (frozenset({2}), 2)
    cut = tables.calls[tables.positions[2]]
    assert (cut.parent, cut.op, cut.n, tables.text(cut.module), cut.start_ns) == (1, op, 4, "m.n", 20_000)
    assert (cut.duration_ns, cut.repeat, list(cut.args), cut.outputs) == (0, 0, [], None)


def test_facts_are_shared_along_a_chain_and_a_circle_of_same_ends(builder: Builder) -> None:
    ids = [builder.value(torch.zeros(1)) for _ in range(5)]
    builder.emit(r.Hash(r.HASH, ids[0], b"12345678"))
    builder.emit(r.Same(r.SAME, ids[2], ids[1], r.SAME_HASH))
    builder.emit(r.Same(r.SAME, ids[1], ids[0], r.SAME_HASH | r.SAME_STATISTICS))
    builder.emit(r.Same(r.SAME, ids[3], ids[4], r.SAME_HASH))
    builder.emit(r.Same(r.SAME, ids[4], ids[3], r.SAME_HASH))
    tables = tables_of(builder)
    assert [tables.same_as(id, r.SAME_HASH, tables.hashes) for id in ids[:3]] == [ids[0]] * 3
    assert tables.same_as(ids[3], r.SAME_HASH, tables.hashes) == ids[3]
    assert tables.same_as(ids[2], r.SAME_STATISTICS, tables.statistics) == ids[2], "that fact is not shared"


def test_later_records_replace_earlier_ones(builder: Builder) -> None:
    number = builder.value(torch.zeros(2), store=None)
    builder.emit(r.Data(r.DATA, number, 1, 0, 0))
    builder.emit(r.Data(r.DATA, number, 2, 8, 1))
    tables = tables_of(builder)
    assert tables.data[number].blob == 2 and len(tables.data) == 1


def test_header_commit_and_torn_bytes(builder: Builder) -> None:
    x = builder.value(torch.zeros(1))
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(x)])
    whole = tables_of(builder)
    assert whole.has_header and whole.commit is not None and whole.dropped_bytes == 0
    torn = tables_of(builder, commit=False, torn=b"\xdc\x00\x00")
    assert (torn.commit, torn.dropped_bytes, torn.header.start_unix_ns) == (None, 3, whole.header.start_unix_ns)


def test_an_index_without_a_header(builder: Builder) -> None:
    (builder.directory / "index.msgpack").write_bytes(b"")
    tables = Source(builder.directory).tables("here")
    assert not tables.has_header
    assert (tables.header.step, tables.header.rank, tables.header.config) == (-1, -1, {})
