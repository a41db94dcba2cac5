"""What an index says of one call."""

from __future__ import annotations

import torch

from aten_dump.dump import open_dump
from aten_dump.dump.call_facts import CallFacts
from aten_dump.store import records as r
from tests.dump.building import START_NS, Builder, value
from tests.dump.scenario import STACK, Scenario


def facts(builder: Builder, id: int) -> CallFacts:
    tables = open_dump(builder.finish()).rank(0, 0).tables
    return CallFacts(tables, tables.calls[tables.positions[id]])


def test_facts_of_an_op(scenario: Scenario) -> None:
    call = facts(scenario.builder, 4)
    assert (call.id, call.name, call.op, call.api) == (4, "Aten.addmm.0.forward", "aten::addmm", "Aten.addmm")
    assert (call.kind, call.phase, call.n, call.repeat, call.parent_id) == ("aten", "forward", 0, 0, 2)
    assert (call.module, call.thread, call.sequence_nr, call.error) == ("net.fc", 0, 11, None)
    assert (call.start_ns, call.duration_ns, call.finished) == (START_NS + 40_000, 1000, True)
    assert call.arguments == ("self", "mat1", "mat2", "beta", "alpha")
    assert [(f.file, f.line, f.function, f.user) for f in call.stack] == list(STACK)
    assert call.source is not None and call.source.line == 42, "the innermost line of the user's own"
    assert call.record.id == 4


def test_slots(scenario: Scenario) -> None:
    ids = scenario.ids
    addmm = facts(scenario.builder, 4)
    assert list(addmm.input_slots()) == [("input.0", ids["bias"]), ("input.1", ids["x"]), ("input.2", ids["wt"])]
    assert list(addmm.output_slots()) == [("output.0", ids["y0"])]
    assert list(addmm.written_slots()) == []
    relu = facts(scenario.builder, 6)
    assert (relu.mutated, list(relu.written_slots())) == (("self",), [("mutated.self", ids["y1"])])
    lists = facts(scenario.builder, 10)
    assert [slot for slot, _ in lists.input_slots()] == ["input.0.0", "input.0.1", "input.1.0", "input.1.1"]
    backward = facts(scenario.builder, 9)
    assert list(backward.output_slots()) == [("output.0", ids["grad_x"]), ("output.1", ids["grad_w"])]


def test_tensors_in_keywords_have_slots_by_name(builder: Builder) -> None:
    x, out = builder.value(torch.zeros(2)), builder.value(torch.zeros(2))
    op = builder.op("aten", "aten::exp.out", "Aten", "exp", ("self", "out"))
    call = builder.call(
        op, args=[value(x)], kwargs={"out": value(out)}, outputs=value(out), written=["out", value(out)]
    )
    found = facts(builder, call)
    assert list(found.input_slots()) == [("input.0", x), ("input.out", out)]
    assert found.read_value_ids() == {x}, "out= is only written to"


def test_a_call_that_raised_and_one_that_was_cut_short(builder: Builder) -> None:
    op = builder.op("module", "torch.nn.Linear", "Module", "fc")
    builder.open(op, id=1, module="fc")
    builder.open(op, id=2, module="fc", n=1)
    builder.call(op, id=1, error="RuntimeError: no", phase="backward", repeat=2, module="fc")
    raised, cut = facts(builder, 1), facts(builder, 2)
    assert (raised.error, raised.finished, raised.name) == ("RuntimeError: no", True, "Module.fc.0.backward.2")
    assert (cut.error, cut.finished, cut.name, cut.stack, cut.source) == (None, False, "Module.fc.1.forward", [], None)
    assert cut.record.kind == r.CALL
