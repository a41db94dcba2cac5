"""Promise 2 and the moments of a tensor: storage, write version, geometry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import IS_COMPILED
from aten_dump.capture.values import value_table
from tests.capture.bits import assert_same, calls, only, values
from tests.devices import here, op_here
from tests.torch_features import needs_saved_tensors

Record = Callable[..., Any]
MIB = 1 << 20


def op(rank: Any, name: str, n: int = 0) -> Any:
    return calls(rank, kind="aten", op=name)[n]


def stored_bytes(rank_path: Path) -> int:
    return sum(file.stat().st_size for file in rank_path.rglob("shard-*"))


def dump_bytes(tmp_path: Path) -> int:
    return stored_bytes(tmp_path / "dump0")


def test_input_of_an_in_place_op_is_the_value_before(record: Record) -> None:
    x = torch.arange(4.0)
    rank = record(lambda: x.add_(10).mul_(2), data="tensor")
    add, mul = op(rank, "aten::add_.Tensor"), op(rank, "aten::mul_.Tensor")
    assert add.inputs[0][0].tensor().tolist() == [0, 1, 2, 3]
    assert add.outputs.tensor().tolist() == mul.inputs[0][0].tensor().tolist() == [10, 11, 12, 13]
    assert mul.outputs.tensor().tolist() == [20, 22, 24, 26]
    assert add.mutated == mul.mutated == ("self",)
    assert add.mutated_values["self"].tensor().tolist() == [10, 11, 12, 13]
    assert_same(add.mutated_values["self"].tensor(), rank.tensor(f"{add.name}.mutated.self"))


def test_views_of_more_places_than_are_kept_are_each_themselves(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not IS_COMPILED:  # what is compiled has read it
        monkeypatch.setattr(value_table, "_MOST_GEOMETRIES", 3)
    x = torch.arange(10.0)
    views = [x[at : at + 1] for at in range(10)]

    def body() -> None:
        for _ in range(2):
            for view in views:
                view.exp()

    rank = record(body, data="tensor")
    read = [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::exp")]
    assert [value.tensor().item() for value in read] == [*range(10)] * 2
    assert [value.id for value in read[:10]] == [value.id for value in read[10:]] and len({v.id for v in read}) == 10


def test_in_place_python_call_keeps_the_value_before(record: Record) -> None:
    x = torch.arange(3.0)
    rank = record(lambda: x.add_(1), level="api", data="tensor")
    call = only(calls(rank, kind="api"))
    assert call.inputs[0][0].tensor().tolist() == [0, 1, 2]
    assert call.outputs.tensor().tolist() == [1, 2, 3]


def test_module_in_place_keeps_the_value_before(record: Record) -> None:
    x = torch.tensor([-1.0, 2.0])
    rank = record(lambda: nn.ReLU(inplace=True)(x), level="module", data="tensor")
    call = only(calls(rank, kind="module"))
    assert call.inputs[0][0].tensor().tolist() == [-1, 2]
    assert call.outputs.tensor().tolist() == [0, 2]


def test_a_write_through_a_view_changes_the_base(record: Record) -> None:
    x = torch.zeros(2, 3)

    def body() -> None:
        x.exp()
        x[1].fill_(5)
        x.exp()

    rank = record(body, data="tensor")
    before, after = op(rank, "aten::exp").inputs[0][0], op(rank, "aten::exp", 1).inputs[0][0]
    assert before.tensor().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert after.tensor().tolist() == [[0, 0, 0], [5, 5, 5]]
    assert before.id != after.id


def test_a_write_through_the_base_changes_the_view(record: Record) -> None:
    x = torch.zeros(4)
    v = x[1:3]

    def body() -> None:
        v.exp()
        x.add_(1)
        v.exp()

    rank = record(body, data="full")
    first, second = op(rank, "aten::exp").inputs[0][0], op(rank, "aten::exp", 1).inputs[0][0]
    assert (first.tensor().tolist(), second.tensor().tolist()) == ([0, 0], [1, 1])
    assert first.hash != second.hash
    assert (first.stats.max, second.stats.max) == (0, 1)


def test_a_value_is_stored_once_however_many_ops_read_it(record: Record, tmp_path: Path) -> None:
    x = torch.randn(1 << 18)  # 1 MiB
    rank = record(lambda: [x.sum() for _ in range(20)] + [x.view(512, 512).t().sum(), x[5:].sum()], data="tensor")
    assert dump_bytes(tmp_path) < 1.3 * MIB
    transposed = only([c for c in calls(rank, kind="aten") if c.op == "aten::t"])
    assert_same(x.view(512, 512).t(), transposed.outputs.tensor(), stride=True)
    sums = calls(rank, kind="aten", op="aten::sum")
    assert len({c.inputs[0][0].id for c in sums[:20]}) == 1
    assert_same(x[5:], sums[-1].inputs[0][0].tensor())


def test_a_view_of_a_huge_buffer_does_not_store_the_buffer(record: Record, tmp_path: Path) -> None:
    huge = torch.randn(8 * MIB)  # 32 MiB
    small = huge[100:200]
    column = huge.view(4096, 2048)[:, 7]
    rank = record(lambda: (small.exp(), column.exp()), data="tensor")
    assert_same(small, op(rank, "aten::exp").inputs[0][0].tensor())
    assert_same(column, op(rank, "aten::exp", 1).inputs[0][0].tensor())
    assert dump_bytes(tmp_path) < 1 * MIB


def test_many_small_views_of_a_buffer(record: Record, tmp_path: Path) -> None:
    huge = torch.randn(1024, 1024)  # 4 MiB
    rank = record(lambda: [row.sum() for row in huge], data="tensor")
    for i, call in enumerate(calls(rank, kind="aten", op="aten::sum")):
        assert_same(huge[i], call.inputs[0][0].tensor())
    assert dump_bytes(tmp_path) < 5 * MIB


def test_a_freed_address_is_not_taken_for_the_old_tensor(record: Record) -> None:
    def body() -> None:
        for i in range(200):
            torch.full((1000,), float(i)).sum()

    rank = record(body, data="full")
    sums = calls(rank, kind="aten", op="aten::sum")
    assert [c.inputs[0][0].tensor()[0].item() for c in sums] == list(range(200))
    assert [c.inputs[0][0].stats.max for c in sums] == list(range(200))


def test_empty_is_undefined_until_it_is_written(record: Record) -> None:
    def body() -> None:
        x = torch.empty(5)
        x.fill_(3)
        x.exp()

    rank = record(body, data="full")
    made, fill = op(rank, "aten::empty.memory_format"), calls(rank, kind="aten")[1]
    assert made.outputs.undefined
    assert made.outputs.stats is None
    assert made.outputs.hash is None
    assert fill.inputs[0][0].undefined
    assert not fill.outputs.undefined
    assert fill.outputs.tensor().tolist() == op(rank, "aten::exp").inputs[0][0].tensor().tolist() == [3] * 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty_like(torch.ones(3)),
        lambda: torch.ones(3).new_empty(3),
        lambda: torch.empty_strided((3,), (1,)),
        lambda: torch.empty(2, 3)[1],
    ],
    ids=["empty_like", "new_empty", "empty_strided", "view_of_empty"],
)
def test_every_kind_of_fresh_memory_is_undefined(record: Record, make: Callable[[], torch.Tensor]) -> None:
    rank = record(make, data="full")
    assert calls(rank, kind="aten")[-1].outputs.undefined


def test_out_argument_is_a_new_version(record: Record) -> None:
    target = torch.zeros(3)
    rank = record(lambda: (torch.add(torch.ones(3), 1, out=target), target.exp()), data="tensor")
    add = op(rank, "aten::add.out")
    assert add.mutated == ("out",)
    assert add.inputs[1]["out"].tensor().tolist() == [0, 0, 0]
    assert add.mutated_values["out"].tensor().tolist() == [2, 2, 2]
    assert op(rank, "aten::exp").inputs[0][0].tensor().tolist() == [2, 2, 2]


def test_out_argument_that_is_resized(record: Record) -> None:
    target = torch.empty(0)
    rank = record(lambda: (torch.add(torch.ones(3), 1, out=target), target.exp()), data="tensor")
    assert op(rank, "aten::add.out").mutated_values["out"].tensor().tolist() == [2, 2, 2]
    assert op(rank, "aten::exp").inputs[0][0].tensor().tolist() == [2, 2, 2]


def test_foreach_that_returns_none(record: Record) -> None:
    xs = [torch.zeros(2), torch.ones(3)]
    rank = record(lambda: (torch._foreach_add_(xs, 1), xs[0].exp()), data="tensor")
    add = op(rank, "aten::_foreach_add_.Scalar")
    assert [v.tensor().tolist() for v in add.inputs[0][0]] == [[0, 0], [1, 1, 1]]
    assert add.mutated == ("self",)
    assert [v.tensor().tolist() for v in add.mutated_values["self"]] == [[1, 1], [2, 2, 2]]
    assert rank.tensor(f"{add.name}.mutated.self.1").tolist() == [2, 2, 2]
    assert op(rank, "aten::exp").inputs[0][0].tensor().tolist() == [1, 1]


def test_batch_norm_writes_its_statistics_without_saying_so(record: Record) -> None:
    """aten::native_batch_norm declares no write, yet it writes running_mean and running_var."""
    norm = nn.BatchNorm1d(3, momentum=0.5)
    kept = []

    def body() -> None:
        for _ in range(3):
            kept.append(norm.running_mean.clone())  # type: ignore[union-attr, operator]
            norm(torch.randn(8, 3))
        kept.append(norm.running_mean.clone())  # type: ignore[union-attr, operator]

    rank = record(body, norm, data="tensor")
    ops = calls(rank, kind="aten", op="aten::native_batch_norm")
    assert len(ops) == 3
    for call, mean in zip(ops, kept[:3], strict=True):
        assert_same(mean, call.inputs[0][3].tensor(), f"running_mean before {call.name}")
    clones = list(calls(rank, kind="aten", op="aten::clone"))
    for call, mean in zip(clones, kept, strict=True):
        assert_same(mean, call.inputs[0][0].tensor(), f"running_mean at {call.name}")


def test_producer_and_consumers(record: Record) -> None:
    x = torch.randn(3)

    def body() -> None:
        y = x.exp()
        y.sin()
        y.cos()

    rank = record(body, level="aten")
    exp, sin, cos = calls(rank, kind="aten")
    assert exp.inputs[0][0].producer is None
    producer, slot = sin.inputs[0][0].producer
    assert (producer.id, slot) == (exp.id, "output.0")
    consumers = [c[0] if isinstance(c, tuple) else c for c in exp.outputs.consumers]
    assert [c.id for c in consumers] == [sin.id, cos.id]


def test_producer_of_a_written_value(record: Record) -> None:
    x = torch.zeros(3)
    rank = record(lambda: (x.add_(1), x.exp()), level="aten")
    add, exp = calls(rank, kind="aten")
    assert exp.inputs[0][0].producer[0].id == add.id


def test_structure_of_arguments(record: Record) -> None:
    """Lists, tuples, dicts, keywords, None, scalars, dtypes, devices, memory formats, generators."""
    generator = torch.Generator(here()).manual_seed(5)

    def body() -> None:
        torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last)
        torch.zeros(2, dtype=torch.float64, device="cpu")
        torch.rand(3, generator=generator)
        torch.nn.functional.pad(torch.ones(2), [1, 2], value=float("inf"))
        torch.clamp(torch.ones(2), None, 2)
        torch.add(torch.ones(2, dtype=torch.complex64), 1 + 2j)
        torch.sum(torch.ones(2, 2), dim=(0, 1), dtype=torch.float64)

    rank = record(body, data="structure")
    assert rank["Tensor.to.0.forward"].inputs[1] == {"memory_format": torch.channels_last}
    zeros = rank["Torch.zeros.0.forward"].inputs[1]
    assert zeros["dtype"] == torch.float64 and str(zeros["device"]) == "cpu"
    assert "generator" in rank["Torch.rand.0.forward"].inputs[1]
    assert rank["Functional.pad.0.forward"].inputs[0][1] == [1, 2]
    assert rank["Functional.pad.0.forward"].inputs[1]["value"] == float("inf")
    assert rank["Torch.clamp.0.forward"].inputs[0][1:] == (None, 2)
    assert rank["Torch.add.0.forward"].inputs[0][1] == 1 + 2j
    assert rank["Torch.sum.0.forward"].inputs[1] == {"dim": (0, 1), "dtype": torch.float64}


def test_a_view_reads_no_more_than_its_bytes_and_is_a_copy_of_nothing_else(record: Record) -> None:
    """Writing to what tensor() gave changes no other read."""
    x = torch.arange(4.0)
    rank = record(lambda: x.exp(), data="tensor")
    value = op(rank, "aten::exp").inputs[0][0]
    value.tensor().add_(1)
    assert value.tensor().tolist() == [0, 1, 2, 3]


def test_sample_keeps_the_first_elements(record: Record, tmp_path: Path) -> None:
    x = torch.randn(1000, 1000)
    rank = record(lambda: x.t().exp(), data="full", sample=16)
    value = op(rank, "aten::exp").inputs[0][0]
    assert tuple(value.shape) == (1000, 1000)
    found = value.tensor()
    assert_same(x.t().flatten()[: found.numel()], found.flatten(), "sample")
    assert found.numel() == 16
    assert value.stats.count == 1_000_000
    assert dump_bytes(tmp_path) < 100_000


def test_io_keeps_data_of_one_side_and_structure_of_both(record: Record) -> None:
    from aten_dump.errors import MissingDataError

    x = torch.ones(3)
    rank = record(lambda: x.exp(), data="tensor", io="output")
    exp = op(rank, "aten::exp")
    assert_same(x.exp(), exp.outputs.tensor())
    assert tuple(exp.inputs[0][0].shape) == (3,)
    with pytest.raises(MissingDataError):
        exp.inputs[0][0].tensor()
    rank = record(lambda: x.exp(), data="tensor", io="input")
    exp = op(rank, "aten::exp")
    assert_same(x, exp.inputs[0][0].tensor())
    with pytest.raises(MissingDataError):
        exp.outputs.tensor()


def test_structure_holds_no_bytes(record: Record, tmp_path: Path) -> None:
    from aten_dump.errors import MissingDataError

    rank = record(lambda: torch.ones(3).exp(), data="structure")
    value = op(rank, "aten::exp").outputs
    assert (tuple(value.shape), value.dtype, tuple(value.stride), str(value.device), value.nbytes) == (
        (3,),
        torch.float32,
        (1,),
        str(here()),
        12,
    )
    with pytest.raises(MissingDataError):
        value.tensor()
    assert values(op(rank, "aten::exp").inputs)[0].hash is None
    assert list((tmp_path / "dump0").rglob("*.safetensors")) == []


@needs_saved_tensors
def test_saved_for_backward(record: Record) -> None:
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)

    def body() -> None:
        y = torch.tanh(nn.functional.linear(x, w))
        y.sum().backward()

    rank = record(body, data="structure")
    saved = {entry.node: entry for entry in rank.saved_for_backward()}
    tanh = saved["TanhBackward0"]
    assert (tanh.call.op, tanh.nbytes) == ("aten::tanh", 4 * 6 * 4)
    assert [tuple(v.shape) for v in tanh.values] == [(4, 6)]
    assert tanh.values[0].id == tanh.call.outputs.id
    linear = saved[op_here("MmBackward0")]
    assert linear.call.op == op_here("aten::mm")
    assert linear.nbytes == (4 * 5 + 6 * 5) * 4
    assert rank.saved_for_backward().nbytes == tanh.nbytes + linear.nbytes
