from __future__ import annotations

import pytest
import torch

from aten_dump.dump import RankDump, open_dump
from aten_dump.errors import MissingDataError
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.dump.scenario import Scenario


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("Aten.addmm.0.forward.output.0", "y0"),
        ("Aten.addmm.0.forward.input.1", "x"),
        ("Aten.addmm.0.forward.input.mat1", "x"),
        ("Aten.addmm.0.forward.input.2", "wt"),
        ("Aten.relu_.0.forward.input.0", "y0"),
        ("Aten.relu_.0.forward.mutated.self", "y1"),
        ("Aten.relu_.0.forward.output.0", "y1"),
        ("Functional.linear.0.backward.output.1", "grad_w"),
        ("Aten._foreach_add_.0.optimizer.input.0.1", "bias"),
        ("Aten._foreach_add_.0.optimizer.input.other.0", "grad_w"),
    ],
)
def test_tensor_by_name(rank: RankDump, scenario: Scenario, name: str, which: str) -> None:
    expected = scenario.tensors[which]
    found = rank.tensor(name)
    assert torch.equal(found, expected)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert rank.value(name).id == scenario.ids[which]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Aten.addmm.0.forward.input.7",
            r"no 'input.7' in call Aten.addmm.0.*its tensors are input.0, input.1",
        ),
        ("Aten.addmm.0.forward.result.0", "its tensors are input.0"),
        ("Aten.addmm.0.forward.input.alpha", "is 2, not a tensor"),
        ("Aten.addmm.0.forward", "is a call, not a tensor"),
        ("Aten._foreach_add_.0.optimizer.input.0", "a tree of several values"),
        ("Functional.linear.0.backward.output.2", "is None, not a tensor"),
        ("Aten.addm.0.forward.output.0", "no call .*nearest: "),
        ("nonsense", "no call 'nonsense'"),
        ("Aten.addmm.0.forward.output", "its tensors are|a tree of several"),
    ],
)
def test_a_wrong_tensor_name(rank: RankDump, name: str, message: str) -> None:
    with pytest.raises(MissingDataError, match=message):
        rank.tensor(name)


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


def test_gradients_are_of_the_last_backward(rank: RankDump, scenario: Scenario) -> None:
    assert list(rank.gradients) == ["net.fc.weight"]
    assert torch.equal(rank.gradients["net.fc.weight"].tensor(), scenario.tensors["grad_w"])


def test_saved_for_backward(rank: RankDump) -> None:
    saved = rank.saved_for_backward()
    assert [(s.call.name, s.node, len(s.values), s.nbytes) for s in saved] == [
        ("Aten.addmm.0.forward", "AddmmBackward0", 3, 32 + 48),  # w and its view wt are one storage
        ("Aten.relu_.0.forward", "ReluBackward0", 1, 24),
    ]
    assert saved.nbytes == 32 + 48 + 24
    assert saved.outside_nbytes == 32 + 48
    assert saved.by_call() == {rank.call(4): 80, rank.call(6): 24}
    assert saved.by_module() == {"net.fc": 80, "": 24}
    assert saved.by_module(depth=1) == {"net": 80, "": 24}
    assert len(saved[1:]) == 1


def test_a_device_that_this_torch_does_not_know(builder: Builder) -> None:
    number = builder.value(torch.arange(4.0), device="npu:0")
    found = open_dump(builder.finish()).rank(0, 0).value_by_id(number)
    assert found.device == "npu:0"
    assert torch.equal(found.tensor(), torch.arange(4.0))
