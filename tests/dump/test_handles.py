from __future__ import annotations

import pytest
import torch

from aten_dump.dump import Frame, RankDump, open_dump
from aten_dump.dump.handles import Value
from aten_dump.errors import MissingDataError
from aten_dump.store import records as r
from tests.dump.building import START_NS, Builder, value
from tests.dump.scenario import Scenario

NAMES = [
    "Module.net.fc.0.forward",
    "Functional.linear.0.forward",
    "Aten.t.0.forward",
    "Aten.addmm.0.forward",
    "Functional.relu_.0.forward",
    "Aten.relu_.0.forward",
    "Node.AddmmBackward0.0.backward",
    "Aten.mm.0.backward",
    "Functional.linear.0.backward",
    "Aten._foreach_add_.0.optimizer",
]


def test_calls_are_in_execution_order(rank: RankDump) -> None:
    assert [call.name for call in rank.calls] == NAMES
    assert [call.id for call in rank.calls] == list(range(1, 11))
    assert len(rank.calls) == 10
    assert [call.id for call in rank.calls[2:4]] == [3, 4]
    assert rank.calls[-1].id == 10
    assert rank.calls[3] in rank.calls
    assert rank.calls[3] not in rank.calls[4:]


def test_a_call_by_name_and_id(rank: RankDump) -> None:
    call = rank["Aten.addmm.0.forward"]
    assert call == rank.call(4) == rank.calls[3]
    assert len({call, rank.call(4), rank.call(5)}) == 2
    assert call != 4
    assert "Aten.addmm.0.forward" in rank
    assert "Aten.addmm.1.forward" not in rank


def test_fields(rank: RankDump) -> None:
    call = rank["Aten.addmm.0.forward"]
    assert (call.op, call.kind, call.phase, call.module) == ("aten::addmm", "aten", "forward", "net.fc")
    assert (call.sequence_nr, call.error, call.finished, call.thread, call.n, call.repeat) == (11, None, True, 0, 0, 0)
    assert (call.start_ns, call.duration_ns) == (START_NS + 40_000, 1000)
    assert call.stack[0] == Frame("/venv/torch/nn/functional.py", 10, "linear", False)
    assert call.source == Frame("/home/me/train.py", 42, "forward", True)
    assert [frame.line for frame in call.stack] == [10, 42, 7]
    assert rank["Aten.relu_.0.forward"].stack == []
    assert rank["Aten.relu_.0.forward"].source is None
    assert rank["Module.net.fc.0.forward"].kind == "module"


def test_inputs_outputs_and_writes(rank: RankDump, scenario: Scenario) -> None:
    args, kwargs = rank["Aten.addmm.0.forward"].inputs
    assert [arg.id for arg in args] == [scenario.ids["bias"], scenario.ids["x"], scenario.ids["wt"]]
    assert kwargs == {"alpha": 2}
    assert rank["Aten.addmm.0.forward"].outputs.id == scenario.ids["y0"]
    relu = rank["Aten.relu_.0.forward"]
    assert relu.mutated == ("self",)
    assert relu.mutated_values["self"].id == relu.outputs.id == scenario.ids["y1"]
    assert rank["Aten.addmm.0.forward"].mutated == ()
    outputs = rank["Functional.linear.0.backward"].outputs
    assert isinstance(outputs, tuple)
    assert [None if out is None else out.id for out in outputs] == [
        scenario.ids["grad_x"],
        scenario.ids["grad_w"],
        None,
    ]


def test_tree_and_partners(rank: RankDump) -> None:
    linear = rank["Functional.linear.0.forward"]
    assert linear.parent == rank["Module.net.fc.0.forward"]
    assert [child.id for child in linear.children] == [3, 4]
    assert linear.parent.parent is None
    assert [call.id for call in rank.roots] == [1, 5, 7, 9, 10]
    addmm = rank["Aten.addmm.0.forward"]
    assert [call.id for call in addmm.backward] == [7, 8]
    assert [call.id for call in linear.backward] == [9]
    assert rank["Aten.mm.0.backward"].forward == addmm
    assert addmm.forward is None


def test_recomputed_calls_are_not_backward(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    builder.call(op, id=1)
    builder.call(op, id=2, phase="recompute", forward=1)
    builder.call(op, id=3, phase="backward", forward=1, n=0)
    builder.call(op, id=4, phase="backward", forward=1, n=0, repeat=1)
    rank = open_dump(builder.finish()).rank(0, 0)
    call = rank["Aten.exp.0.forward"]
    assert [c.name for c in call.backward] == ["Aten.exp.0.backward", "Aten.exp.0.backward.1"]
    assert [c.name for c in call.recomputed] == ["Aten.exp.0.recompute"]
    assert rank["Aten.exp.0.backward.1"].repeat == 1


def test_filter_of_a_filter(rank: RankDump) -> None:
    assert [call.id for call in rank.calls.filter(kind="aten").filter(phase="forward")[1:]] == [4, 6]


def test_a_wrong_name_names_the_nearest(rank: RankDump) -> None:
    with pytest.raises(MissingDataError, match=r"nearest: .*Aten\.addmm\.0\.forward") as caught:
        rank["Aten.addm.0.forward"]
    assert "step 0, rank 0" in str(caught.value)
    with pytest.raises(MissingDataError, match="ids go from 1 to 10"):
        rank.call(99)


def test_records_of_a_newer_writer(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    builder.emit([99, "a kind of the future"])
    builder.call(op)
    builder.records[-1] = [*builder.records[-1], "a field of the future"]
    rank = open_dump(builder.finish()).rank(0, 0)
    assert rank["Aten.exp.0.forward"].error is None


def test_names_are_resolved_without_parsing(builder: Builder) -> None:
    """A module path may look like a call name, and dict keys may hold dots."""
    x = builder.value(torch.arange(3.0))
    y = builder.value(torch.arange(4.0))
    inner = builder.op("module", "M", "Module", "a.0.forward.output.0")
    outer = builder.op("module", "M", "Module", "a")
    builder.call(outer, outputs=[r.TREE_DICT, "k", value(x), "k.v", value(y)])
    builder.call(inner, outputs=value(y))
    rank = open_dump(builder.finish()).rank(0, 0)
    assert rank.value("Module.a.0.forward.output.k").id == x
    assert rank.value("Module.a.0.forward.output.k.v").id == y
    assert rank.value("Module.a.0.forward.output.0.0.forward.output.0").id == y


def test_a_small_tensor_is_one_block_as_it_is_and_a_large_one_several(builder: Builder) -> None:
    tensor = torch.arange(20.0).view(4, 5).t()
    number = builder.value(tensor)
    value = open_dump(builder.finish()).rank(0, 0).value_by_id(number)
    assert isinstance(value, Value)
    [(index, block)] = value.blocks()
    assert index == () and block.stride() == tensor.stride() and torch.equal(block, tensor)
    [(index, _)] = value.blocks(80)
    assert index == ()
    assert [len(index) for index, _ in value.blocks(79)] == [1, 1]


def test_the_memory_of_a_private_format_is_a_value_of_its_own(builder: Builder) -> None:
    laid_out = torch.arange(8.0).view(2, 1, 2, 2)
    memory = builder.value(laid_out)
    number = builder.value(torch.ones(2, 3), extra={"format": "FRACTAL_NZ", "memory": memory})
    rank = open_dump(builder.finish()).rank(0, 0)
    found = rank.value_by_id(number).private_memory
    assert found is not None and torch.equal(found.tensor(), laid_out)
    assert found.private_memory is None
