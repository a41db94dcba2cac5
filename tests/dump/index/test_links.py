"""Who made and who read a value, who ran in whom, who belongs to whom."""

from __future__ import annotations

import torch

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.index.links import Links
from tests.dump.building import Builder, value


def links(builder: Builder) -> Links:
    return Links(open_dump(builder.finish()).rank(0, 0).tables)


def test_producer_and_consumers(rank: RankDump) -> None:
    y0 = rank.value("Module.net.fc.0.forward.output.0")
    assert y0.producer == (rank["Aten.addmm.0.forward"], "output.0")
    assert y0.consumers == [(rank["Functional.relu_.0.forward"], "input.0"), (rank["Aten.relu_.0.forward"], "input.0")]
    y1 = rank.value("Functional.relu_.0.forward.output.0")
    assert y1.producer == (rank["Aten.relu_.0.forward"], "output.0")
    x = rank.value("Aten.addmm.0.forward.input.1")
    assert x.producer is None
    assert x.from_outside
    wt = rank.value("Aten.addmm.0.forward.input.2")
    assert wt.producer == (rank["Aten.t.0.forward"], "output.0")
    assert wt.from_outside
    assert not y1.from_outside
    assert [(call.id, slot) for call, slot in rank.value("Aten.t.0.forward.input.0").consumers] == [
        (2, "input.1"), (3, "input.0"), (8, "input.1"), (10, "input.0.0"),
    ]  # fmt: skip
    assert rank.value("Functional.linear.0.backward.output.1").producer == (rank.call(7), "output.1")


def test_a_call_that_passes_a_value_through_is_not_its_producer(builder: Builder) -> None:
    x = builder.value(torch.zeros(2))
    op = builder.op("aten", "aten::detach", "Aten", "detach")
    builder.call(op, args=[value(x)], outputs=value(x))
    found = open_dump(builder.finish()).rank(0, 0).value_by_id(x)
    assert found.producer is None
    assert len(found.consumers) == 1


def test_the_innermost_then_the_earliest_call_made_a_value(builder: Builder) -> None:
    x, y, z = (value(builder.value(torch.zeros(2))) for _ in range(3))
    aten, api = builder.op("aten", "aten::exp", "Aten", "exp"), builder.op("api", "torch.exp", "Torch", "exp")
    module, node = builder.op("module", "M", "Module", "m"), builder.op("node", "ExpBackward0", "Node", "ExpBackward0")
    builder.call(module, id=1, args=[x], outputs=y)
    builder.call(api, id=2, parent=1, args=[x], outputs=y)
    builder.call(aten, id=3, parent=2, args=[x], outputs=y)
    builder.call(aten, id=4, args=[x], outputs=y)
    builder.call(api, id=5, outputs=z)
    builder.call(node, id=6, outputs=z)
    found = links(builder)
    assert found.producers == {y[1]: 2, z[1]: 5}
    assert found.consumers == {x[1]: [0, 1, 2, 3]}


def test_what_an_op_read_before_anyone_made_it_came_from_outside(builder: Builder) -> None:
    p, q = (value(builder.value(torch.zeros(2))) for _ in range(2))
    op, api = builder.op("aten", "aten::t", "Aten", "t"), builder.op("api", "torch.t", "Torch", "t")
    builder.call(op, args=[p])
    builder.call(op, outputs=p)  # only passed on
    builder.call(api, args=[q])  # an API call may end after the op inside it that made what it reads
    builder.call(op, outputs=q)
    assert links(builder).producers == {q[1]: 3}


def test_a_written_argument_is_made_by_the_call_that_wrote_it(builder: Builder) -> None:
    before, after = (value(builder.value(torch.zeros(2))) for _ in range(2))
    relu = builder.op("aten", "aten::relu_", "Aten", "relu_", ("self",))
    builder.call(relu, args=[before], written=["self", after])
    assert links(builder).producers == {after[1]: 0}


def test_children_of_a_call_that_was_never_recorded_are_roots(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    for id, parent in ((2, 1), (3, 2), (4, 2), (5, 0)):
        builder.call(op, id=id, parent=parent)
    found = links(builder)
    assert {key: list(group) for key, group in found.children.items()} == {0: [0, 3], 2: [1, 2]}


def test_recomputed_calls_belong_to_their_originals(builder: Builder) -> None:
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    x, y, again = (value(builder.value(torch.zeros(2))) for _ in range(3))
    builder.call(op, id=1, args=[x], outputs=y)
    builder.call(op, id=2, phase="recompute", args=[x], outputs=again, n=0)
    builder.call(op, id=3, phase="backward", forward=1, n=0)
    found = links(builder)
    assert found.originals == {2: 1}
    assert list(found.belonging[1]) == [1, 2]


def test_the_first_value_of_a_storage(builder: Builder) -> None:
    base = torch.arange(4.0)
    first, view = builder.value(base), builder.value(base[1:])
    other = builder.value(torch.zeros(1))
    found = links(builder)
    rank = open_dump(builder.root).rank(0, 0)
    storage = rank.value_by_id(view).storage
    assert found.first_value(storage, view) == first
    assert found.first_value(rank.value_by_id(other).storage, other) == other
    assert found.first_value(0, 77) == 77 and found.first_value(999, 78) == 78


def test_names(builder: Builder) -> None:
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), n=4)
    assert dict(links(builder).names) == {"Aten.exp.4.forward": 0}
