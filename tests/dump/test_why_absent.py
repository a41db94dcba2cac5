"""Why something is not there: sentences that say what to do about it."""

from __future__ import annotations

import pytest
import torch

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.call_filter import Wanted
from aten_dump.dump.why_absent import missing_parts, nearest, no_such_call, no_such_filter, why_no_data
from aten_dump.store import records as r
from aten_dump.store.recovery import RECOVERED
from tests.dump.building import Builder, value


def why(builder: Builder, number: int, commit: bool = True) -> str:
    rank = open_dump(builder.finish(commit=commit)).rank(0, 0)
    return why_no_data(rank.value_by_id(number), rank.tables, rank.source)


def test_the_first_reason_that_holds_is_given(builder: Builder) -> None:
    builder.records[0].config.update(data="structure", max_bytes=5)
    numbers = {
        "it is memory that nothing had written yet": builder.value(torch.zeros(1), flags=r.UNDEFINED, store=None),
        "it stands for a sum that autograd made": builder.value(torch.zeros(1), extra={"sum": True}, store=None),
        "the tensor has no bytes of its own": builder.value(torch.zeros(1), flags=r.OPAQUE, store=None),
        'data="structure", which keeps no bytes': builder.value(torch.zeros(1, 2), store=None),
    }
    for reason, number in numbers.items():
        assert reason in why(builder, number)
    assert f"no bytes of value {number} (float32[1, 2]) in" in why(builder, number)


@pytest.mark.parametrize("data", ["tensor", "full"])
def test_a_budget_a_selection_and_neither(builder: Builder, data: str) -> None:
    config = builder.records[0].config
    number = builder.value(torch.zeros(1), store=None)
    config.update(data=data, max_bytes=5, io="output")
    assert "max_bytes=5 may have been spent" in why(builder, number)
    config.update(max_bytes=None)
    assert 'io="output" left it out; record again with io="all"' in why(builder, number)
    config.update(io="all")
    for n in range(7):
        builder.emit(r.Note(r.NOTE, "code", f"note {n}", 1))
    said = why(builder, number)
    assert "the recorder did not store it; it noted: note 0; it noted: note 1" in said
    assert "note 4" in said and "note 5" not in said


def test_an_interrupted_or_recovered_dump(builder: Builder) -> None:
    number = builder.value(torch.zeros(1), store=None)
    assert "interrupted before they were written; no commit record" in why(builder, number, commit=False)
    builder.emit(r.Note(r.NOTE, RECOVERED, "recovered", 1))
    assert "interrupted before they were written; recovered after it was cut short" in why(builder, number)


def test_bytes_that_the_index_names_and_does_not_describe(builder: Builder) -> None:
    number = builder.value(torch.zeros(1), store=None)
    builder.emit(r.Data(r.DATA, number, 77, 0, 0))
    assert "1 values name stored bytes that the index does not describe" in why(builder, number)


def test_no_such_call() -> None:
    assert "it has no calls at all" in no_such_call("a", [], "here", "aten-dump show d")
    near = no_such_call("Aten.addm.0.forward", ["Aten.addmm.0.forward", "Aten.mul.0.forward"], "here", "ls")
    assert near.startswith("no call 'Aten.addm.0.forward' in here, which has 2 calls; nearest: Aten.addmm.0.forward")
    names = [f"Torch.f{n}.0.forward" for n in range(9)]
    assert "the first are Torch.f0.0.forward, Torch.f1.0.forward, Torch.f2.0.forward, Torch.f3.0.forward, "
    said = no_such_call("zzz", names, "here", "aten-dump show d")
    assert "the first are " + ", ".join(names[:5]) + ". List them with `aten-dump show d`" in said


def test_the_nearest_names_have_the_same_api_first() -> None:
    known = ["Aten.addmm.1.forward", "Aten.mm.0.forward", "Functional.linear.0.forward"]
    assert nearest("Aten.addmm.0.forward", known)[0] == "Aten.addmm.1.forward"
    assert nearest("functional.Linear.3.forward", known) == ["Functional.linear.0.forward"]
    assert nearest("zzz", known) == []
    assert len(nearest("Aten.f.0.forward", [f"Aten.f.{n}.forward" for n in range(1, 30)])) == 5


def test_of_filters_those_that_match_no_call_are_named(rank: RankDump) -> None:
    for wanted, expected in (
        (Wanted(op="relu", module="net.*", phase="recompute"), ""),
        (Wanted(op="Relu__"), "no op matches 'Relu__', nearest: Aten.relu_, aten::relu_"),
        (Wanted(op="regex:zzz", module="zzz"), "no op matches 'regex:zzz'; no module matches 'zzz'"),
    ):
        assert no_such_filter(rank.tables, wanted) == expected


def test_of_very_many_names_those_that_begin_alike_are_searched() -> None:
    known = [f"Aten.add.{n}.forward" for n in range(6000)] + [f"Torch.add.{n}.forward" for n in range(6000)]
    found = nearest("Torch.add.77777.forward", known)
    assert len(found) == 5 and all(name.startswith("Torch.") for name in found)
    assert nearest("Xyz.add.1.forward", known)[0] == "Aten.add.1.forward", "none begins so: the first ones are searched"


def test_a_whole_step_lacks_nothing(builder: Builder) -> None:
    x = builder.value(torch.zeros(1))
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(x)], parent=0)
    rank = open_dump(builder.finish()).rank(0, 0)
    assert missing_parts(rank.tables, 0) == []
    assert missing_parts(rank.tables, 2) == ["the bytes of 2 of 1 stored tensors are not in their shards"]


def test_many_calls_that_were_cut_short(builder: Builder) -> None:
    for n in range(1, 8):
        builder.open(builder.op("module", "M", "Module", f"m{n}"), id=n)
    rank = open_dump(builder.finish(commit=False)).rank(0, 0)
    (said,) = [part for part in rank.missing if "cut short, without" in part]
    assert said.startswith("7 module calls") and "m2" not in said
    assert said.endswith(": ..., " + ", ".join(f"Module.m{n}.0.forward" for n in range(3, 8)))


def test_calls_whose_parents_are_gone_count_only_in_an_interrupted_dump(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    builder.call(op, id=2, parent=1)
    builder.call(op, id=3, parent=2)
    whole = open_dump(builder.finish()).rank(0, 0)
    assert whole.missing == []
    torn = open_dump(builder.finish(commit=False)).rank(0, 0)
    assert "1 calls that others ran in were cut short before they were recorded" in torn.missing
