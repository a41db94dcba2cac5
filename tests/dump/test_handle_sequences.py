"""Sequences of calls and values: what is in them, parts of them, and what is selected."""

from __future__ import annotations

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.handle_sequences import Calls, Values
from tests.dump.building import Builder, value
from tests.dump.scenario import Scenario


def test_calls_are_a_sequence(rank: RankDump) -> None:
    calls = Calls(rank, range(2, 6))
    assert [call.id for call in calls] == [3, 4, 5, 6]
    assert (len(calls), calls[0].id, calls[-1].id) == (4, 3, 6)
    assert [call.id for call in calls[1:3]] == [4, 5]
    assert isinstance(calls[1:3], Calls)
    assert calls[0] in calls and rank.call(2) not in calls and rank.call(7) not in calls
    assert "Aten.t.0.forward" not in calls
    assert repr(calls) == f"<4 calls of {rank.where}>"


def test_a_call_of_another_recording_is_not_in_it(rank: RankDump, scenario: Scenario) -> None:
    again = open_dump(scenario.builder.root).rank(0, 0)
    assert again.call(4) in rank.calls  # the same recording, opened twice
    other = Builder(scenario.builder.root.parent / "other")
    other.call(other.op("aten", "aten::exp", "Aten", "exp"), id=4)
    assert open_dump(other.finish()).rank(0, 0).call(4) not in rank.calls


def test_filters_go_on_from_filters(rank: RankDump) -> None:
    found = rank.calls.filter(kind="aten").filter(phase="forward")
    assert [call.id for call in found] == [3, 4, 6]
    assert [call.id for call in found[1:].filter(op="aten::addmm")] == [4]
    assert [call.id for call in rank.calls.filter(op="linear", module="net", name="backward")] == [9]


def test_values_are_a_sequence(builder: Builder) -> None:
    import torch

    ids = [builder.value(torch.full((2,), float(n))) for n in range(4)]
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), outputs=value(ids[0]))
    rank = open_dump(builder.finish()).rank(0, 0)
    values = Values(rank, [4, 2, 3])
    assert [v.id for v in values] == [4, 2, 3]
    assert [v.id for v in values[1:]] == [2, 3]
    assert (len(values), values[-1].id, isinstance(values[:1], Values)) == (3, 3, True)
    assert repr(values) == f"<3 values of {rank.where}>"
