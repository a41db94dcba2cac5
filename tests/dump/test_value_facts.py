"""What an index says of one value."""

from __future__ import annotations

import pytest
import torch

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.value_facts import ValueFacts
from aten_dump.errors import MissingDataError
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.dump.scenario import Scenario


def facts(builder: Builder, number: int) -> ValueFacts:
    tables = open_dump(builder.finish()).rank(0, 0).tables
    return ValueFacts(tables, tables.values[number])


def test_facts(rank: RankDump, scenario: Scenario) -> None:
    wt = rank.value("Aten.addmm.0.forward.input.2")
    assert (wt.shape, wt.stride, wt.dtype, wt.device) == (
        torch.Size([4, 3]),
        (1, 4),
        torch.float32,
        torch.device("cpu"),
    )
    assert (wt.nbytes, wt.version, wt.storage_offset, wt.layout, wt.undefined) == (48, 0, 0, torch.strided, False)
    w = rank.value("Aten.t.0.forward.input.0")
    assert wt.storage == w.storage
    assert w.requires_grad
    assert not wt.requires_grad
    y1 = rank.value("Aten.relu_.0.forward.output.0")
    assert (y1.version, y1.storage) == (1, rank.value("Aten.relu_.0.forward.input.0").storage)
    assert w == rank.value("Aten.mm.0.backward.input.1")
    assert w != wt
    assert [v.id for v in rank.values] == sorted(scenario.ids.values())


def test_statistics_and_hash_follow_same(rank: RankDump) -> None:
    w, wt = rank.value("Aten.t.0.forward.input.0"), rank.value("Aten.t.0.forward.output.0")
    assert wt.stats is not None
    assert w.stats == wt.stats
    assert (wt.stats.min, wt.stats["l2norm"], wt.stats.positive) == (-1.5, 3.0, 7)
    assert list(wt.stats)[:2] == ["count", "min"]
    assert wt.hash is None  # only statistics are shared
    assert rank.value("Aten.addmm.0.forward.input.1").hash == "0001020304050607"
    assert rank.value("Aten.addmm.0.forward.output.0").stats is None
    with pytest.raises(MissingDataError, match="'median' was not recorded; recorded are count"):
        wt.stats["median"]
    with pytest.raises(AttributeError, match="median"):
        wt.stats.median


def test_complex_statistics_and_a_cycle_of_same(builder: Builder) -> None:
    builder.records[0].config["statistics"] = ["count", "mean", "min"]
    a = builder.value(torch.zeros(2))
    b = builder.value(torch.zeros(2))
    c = builder.value(torch.zeros(2))
    builder.emit(r.Statistics(r.STATISTICS, a, [2, [1.0, 2.0], None]))
    builder.emit(r.Same(r.SAME, b, c, r.SAME_HASH | r.SAME_STATISTICS))
    builder.emit(r.Same(r.SAME, c, b, r.SAME_HASH))
    builder.emit(r.Same(r.SAME, c, a, r.SAME_STATISTICS))
    rank = open_dump(builder.finish()).rank(0, 0)
    stats = rank.value_by_id(b).stats
    assert stats is not None
    assert dict(stats) == {"count": 2, "mean": complex(1, 2), "min": None}
    assert rank.value_by_id(b).hash is None


def test_a_device_that_this_torch_does_not_know(builder: Builder) -> None:
    number = builder.value(torch.arange(4.0), device="npu:0")
    found = open_dump(builder.finish()).rank(0, 0).value_by_id(number)
    assert found.device == "npu:0"
    assert torch.equal(found.tensor(), torch.arange(4.0))


@pytest.mark.parametrize(
    ("flags", "name", "absence"),
    [
        (r.UNDEFINED, "undefined", "is undefined memory"),
        (r.OPAQUE, "opaque", "has no bytes of its own"),
        (r.CONJUGATE, "conjugate", ""),
        (r.NEGATIVE, "negative", ""),
        (r.REQUIRES_GRAD, "requires_grad", ""),
        (0, "", ""),
    ],
)
def test_each_flag_is_one_fact(builder: Builder, flags: int, name: str, absence: str) -> None:
    found = facts(builder, builder.value(torch.zeros(2), flags=flags, store=None))
    names = ("undefined", "opaque", "conjugate", "negative", "requires_grad")
    assert [fact for fact in names if getattr(found, fact)] == [name] * bool(name)
    assert found.absence == absence
    assert (found.unsettled, found.composed) == (False, False)


def test_a_dtype_that_this_torch_lacks(builder: Builder) -> None:
    number = builder.next("value")
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float3"), [2], [1], 0, None))
    found = facts(builder, number)
    assert (found.dtype_name, found.is_floating) == ("float3", False)
    with pytest.raises(MissingDataError, match=r"'float3', which torch .* does not have; read the dump with the torch"):
        found.dtype


@pytest.mark.parametrize(
    ("name", "expected"),
    [("float32", True), ("complex64", True), ("bfloat16", True), ("int64", False), ("bool", False)],
)
def test_floating_is_float_or_complex(builder: Builder, name: str, expected: bool) -> None:
    assert facts(builder, builder.value(torch.zeros(2, dtype=getattr(torch, name)))).is_floating is expected


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4"])
def test_what_torch_does_not_compute_with_is_not_floating(builder: Builder, name: str) -> None:
    number = builder.next("value")
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text(name), [2], [1], 0, None))
    assert not facts(builder, number).is_floating


def test_a_value_without_a_storage(builder: Builder) -> None:
    number, extra = builder.next("value"), {"layout": "sparse_coo", "device": "npu:1"}
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float32"), [2, 3], [], 0, extra))
    found = facts(builder, number)
    assert (found.storage, found.storage_nbytes, found.stride, found.device_name) == (0, 0, (), "npu:1")
    assert (found.layout, found.layout_name, found.numel, found.data) == (torch.sparse_coo, "sparse_coo", 6, None)
    found.extra["layout"] = "changed"
    assert found.layout_name == "sparse_coo", "what is handed out is a copy"


def test_what_has_no_facts_of_layout_and_device_is_strided_on_the_cpu(builder: Builder) -> None:
    number = builder.next("value")
    builder.emit(r.Value(r.VALUE, number, 0, 0, 0, builder.text("float32"), [1], [1], 0, {"layout": "no layout"}))
    found = facts(builder, number)
    assert (found.layout, found.device_name) == (torch.strided, "cpu")


def test_storage_and_bytes(builder: Builder) -> None:
    base = torch.arange(10.0)
    found = facts(builder, builder.value(base[4:8], version=3))
    assert (found.storage_nbytes, found.storage_offset, found.version, found.numel) == (40, 4, 3, 4)
    assert found.data is not None and found.data.offset == 16


def test_a_blob_that_was_announced_and_not_written_is_no_data(builder: Builder) -> None:
    """As an interrupted dump has it: the program's thread names the blob, the writer did not come to it."""
    number = builder.value(torch.zeros(2), store=None)
    builder.emit(r.Data(r.DATA, number, 77, 0, 0))
    assert facts(builder, number).data is None
    assert not open_dump(builder.root).rank(0, 0).value_by_id(number).has_data
