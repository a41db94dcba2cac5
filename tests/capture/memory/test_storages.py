"""Tensors whose memory the program changes under them, shares, or writes in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump.capture.memory.storages import StorageState
from aten_dump.store.records import TREE_VALUE
from tests.capture.bits import assert_same, calls, only, values

Record = Callable[..., Any]


def op(rank: Any, name: str, n: int = 0) -> Any:
    return calls(rank, kind="aten", op=name)[n]


def seen_by_exp(rank: Any) -> list[Any]:
    return [call.inputs[0][0] for call in calls(rank, kind="aten", op="aten::exp")]


def test_set_gives_other_memory(record: Record) -> None:
    x, y = torch.zeros(3), torch.arange(4.0)

    def body() -> None:
        x.exp()
        x.set_(y)
        x.exp()
        y.add_(1)
        x.exp()

    rank = record(body, data="full")
    first, second, third = seen_by_exp(rank)
    assert first.tensor().tolist() == [0, 0, 0]
    assert second.tensor().tolist() == [0, 1, 2, 3]
    assert third.tensor().tolist() == [1, 2, 3, 4]
    assert first.storage != second.storage == third.storage
    call = op(rank, "aten::set_.source_Tensor")
    assert call.mutated == ("self",)
    assert second.id == call.inputs[0][1].id == call.outputs.id  # no byte was written


def test_set_to_memory_that_nothing_wrote(record: Record) -> None:
    x = torch.zeros(3)
    (value,) = seen_by_exp(record(lambda: (x.set_(torch.empty(3)), x.exp()), data="full"))
    assert value.undefined and value.hash is None


def test_set_with_offset_and_stride_of_a_storage(record: Record) -> None:
    base, x = torch.arange(12.0), torch.zeros(1)
    (value,) = seen_by_exp(record(lambda: (x.set_(base.untyped_storage(), 2, (2, 3), (5, 1)), x.exp()), data="full"))
    assert value.tensor().tolist() == [[2, 3, 4], [7, 8, 9]]
    assert (value.storage_offset, value.stride) == (2, (5, 1))


def test_resize_keeps_what_was_there_and_the_rest_is_undefined(record: Record) -> None:
    x = torch.arange(3.0)

    def body() -> None:
        x.resize_(6)
        x[:3].exp()
        x.exp()
        x[3:].fill_(9)
        x.exp()
        x.resize_(2)
        x.exp()

    old, half, whole, small = seen_by_exp(record(body, data="full"))
    assert not old.undefined and old.tensor().tolist() == [0, 1, 2]
    assert half.undefined
    assert not whole.undefined and whole.tensor().tolist() == [0, 1, 2, 9, 9, 9]
    assert small.tensor().tolist() == [0, 1]


def test_in_place_views_write_nothing(record: Record) -> None:
    x = torch.arange(6.0).reshape(2, 3)

    def body() -> None:
        x.exp()
        x.t_()
        x.exp()
        x.unsqueeze_(0)
        x.exp()

    rank = record(body, data="full")
    seen = seen_by_exp(rank)
    assert [value.version for value in seen] == [0, 0, 0]
    assert_same(torch.arange(6.0).reshape(2, 3).t(), seen[1].tensor(), stride=True)
    assert op(rank, "aten::t_").mutated == ("self",)
    assert tuple(seen[2].shape) == (1, 3, 2)


def test_data_set_by_attribute(record: Record) -> None:
    layer = nn.Linear(2, 2, bias=False)
    new = torch.full((2, 2), 3.0)

    def body() -> None:
        layer(torch.ones(1, 2))
        layer.weight.data = new
        layer(torch.ones(1, 2))
        layer.weight.data.mul_(2)  # no version counter of autograd's tells of this one
        layer(torch.ones(1, 2))

    rank = record(body, data="tensor")
    weights = [
        call.inputs[0][1].tensor() for call in calls(rank, kind="api") if call.name.startswith("Functional.linear")
    ]
    assert_same(torch.full((2, 2), 3.0), weights[1])
    assert_same(torch.full((2, 2), 6.0), weights[2])
    assert weights[0].tolist() != weights[1].tolist()


def test_gradient_set_accumulated_and_cleared(record: Record) -> None:
    x = torch.ones(3, requires_grad=True)

    def body() -> None:
        (x * 2).sum().backward()
        x.grad.exp()  # type: ignore[union-attr]
        (x * 3).sum().backward()
        x.grad.exp()  # type: ignore[union-attr]
        x.grad = torch.full((3,), 8.0)
        x.grad.exp()
        x.grad.zero_()
        x.grad.exp()
        x.grad = None
        (x * 4).sum().backward()
        x.grad.exp()  # type: ignore[union-attr]

    found = [value.tensor().tolist() for value in seen_by_exp(record(body, data="full"))]
    assert found == [[2] * 3, [5] * 3, [8] * 3, [0] * 3, [4] * 3]


def test_memory_shared_with_numpy_is_read_as_it_is(record: Record) -> None:
    import numpy

    array = numpy.arange(6, dtype=numpy.float32)
    shared = torch.from_numpy(array)

    def body() -> None:
        shared.exp()
        shared.add_(1)
        shared.exp()

    before, after = seen_by_exp(record(body, data="full"))
    assert before.tensor().tolist() == list(range(6)) and after.tensor().tolist() == array.tolist()


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_optimizer_writes_are_recorded(record: Record, name: str, kind: str) -> None:
    """What the step wrote is what the parameters hold: as mutated values of the op, and read later."""
    layer = nn.Linear(4, 3)
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1, **{kind: True})
    before = {n: p.detach().clone() for n, p in layer.named_parameters()}
    layer(torch.randn(2, 4)).sum().backward()

    def body() -> None:
        optimizer.step()
        for parameter in layer.parameters():
            parameter.detach().exp()

    rank = record(body, layer, data="tensor")
    after = {n: p.detach().clone() for n, p in layer.named_parameters()}
    for (name_of, parameter), value in zip(after.items(), seen_by_exp(rank), strict=True):
        assert_same(parameter, value.tensor(), name_of)
        call, _ = value.producer
        assert call.phase == "optimizer" and ("_fused" if kind == "fused" else "_foreach") in call.op
    if kind == "fused":
        call = only([c for c in calls(rank, kind="aten") if "_fused" in c.op])
        for parameter, value in zip(before.values(), call.inputs[0][0], strict=True):
            assert_same(parameter, value.tensor())
        for parameter, value in zip(after.values(), call.mutated_values["self"], strict=True):
            assert_same(parameter, value.tensor())


def test_tied_weights_are_one_value(record: Record, tmp_path: Path) -> None:
    first, second = nn.Embedding(512, 256), nn.Linear(256, 512, bias=False)  # 512 KiB
    second.weight = first.weight
    tokens = torch.tensor([[1, 2, 3]])
    rank = record(lambda: second(first(tokens)).sum(), nn.ModuleDict({"a": first, "b": second}), data="tensor")
    table = op(rank, "aten::embedding").inputs[0][0]
    transposed = op(rank, "aten::t").inputs[0][0]
    assert table.id == transposed.id
    assert sum(file.stat().st_size for file in tmp_path.rglob("shard-*")) < 700_000


def test_a_tensor_larger_than_a_shard(record: Record, tmp_path: Path) -> None:
    big, small = torch.randn(1 << 18), torch.randn(10)  # 1 MiB in shards of 64 KiB
    rank = record(lambda: (small.exp(), big.exp(), small.sin()), data="full", shard_bytes=1 << 16)
    assert_same(big, seen_by_exp(rank)[1].tensor())
    assert_same(big.exp(), op(rank, "aten::exp", 1).outputs.tensor())
    assert_same(small.sin(), op(rank, "aten::sin").outputs.tensor())
    assert len(list(tmp_path.rglob("shard-*"))) >= 2


def test_python_numbers_stay_numbers(record: Record) -> None:
    """A scalar that torch wraps in a 0-d tensor for its own use is recorded as what the program wrote."""
    x = torch.ones(2, dtype=torch.complex64)
    rank = record(lambda: (x + 2, 2.5 * x, x + (1 + 2j), x + True, x + torch.tensor(2.0)), data="tensor")
    found = [
        call.inputs[0][1] for call in calls(rank, kind="aten") if call.op in ("aten::add.Tensor", "aten::mul.Tensor")
    ]
    assert found[:4] == [2, 2.5, 1 + 2j, True]
    assert [type(number) for number in found[:4]] == [int, float, complex, bool]
    assert found[4].tensor().item() == 2 and tuple(found[4].shape) == ()


def test_overlapping_writes_leave_no_hole(record: Record) -> None:
    """Memory counts as defined when each byte was written, not when as many bytes were written as it has."""

    def body() -> None:
        x = torch.empty(4, 4)
        x[:, :2].fill_(1)
        x[:, 1:3].fill_(2)
        x.exp()
        x[:, 3:].fill_(3)
        x.exp()
        x.t().exp()

    hole, whole, turned = seen_by_exp(record(body, data="full"))
    assert hole.undefined
    assert not whole.undefined and whole.tensor().tolist() == [[1, 2, 2, 3]] * 4
    assert not turned.undefined and turned.tensor().tolist() == [[1] * 4, [2] * 4, [2] * 4, [3] * 4]


def test_a_copy_of_undefined_memory_is_undefined(record: Record) -> None:
    def body() -> None:
        x = torch.empty(2, 3)
        x[0] = 5
        y = torch.zeros(2, 3)
        y.copy_(x)
        y[0].exp()
        y.exp()
        x.clone().exp()
        x[0].clone().exp()
        y[1] = 6
        y.exp()

    found = seen_by_exp(record(body, data="full"))
    assert [value.undefined for value in found] == [False, True, True, False, False]
    assert found[4].tensor().tolist() == [[5] * 3, [6] * 3]


def test_circular_padding_is_defined_in_the_end(record: Record) -> None:
    """It allocates, and copies parts of the result that are only half written to others."""
    x = torch.randn(2, 3, 4, 5)
    expected = nn.functional.pad(x, (1, 2, 2, 1), mode="circular")
    rank = record(lambda: nn.functional.pad(x, (1, 2, 2, 1), mode="circular").exp(), data="full")
    (value,) = seen_by_exp(rank)
    assert not value.undefined
    assert_same(expected, value.tensor())


def test_a_zero_size_view_at_the_end_of_its_storage(record: Record) -> None:
    x = torch.empty(0, 3, dtype=torch.complex64)
    y = torch.arange(6.0)
    rank = record(lambda: (x.imag.exp(), y[6:].exp(), y[6:].view(0, 2)[:, 1].exp()), data="full")
    seen = seen_by_exp(rank)
    assert len(seen) == 3
    for value in seen:
        assert value.tensor().numel() == 0 and value.stats.count == 0 and value.hash is not None


def test_a_storage_freed_and_made_again_is_another_value(record: Record) -> None:
    """FSDP frees and grows storages under their tensors."""
    x = torch.arange(3.0)

    def body() -> None:
        x.exp()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(12)
        x.fill_(4)
        x.exp()

    before, after = seen_by_exp(record(body, data="full"))
    assert before.tensor().tolist() == [0, 1, 2] and after.tensor().tolist() == [4, 4, 4]
    assert before.id != after.id and len(values([before, after])) == 2


@pytest.mark.parametrize("dedup", ["version", "content"])
@pytest.mark.parametrize("data", ["tensor", "hash", "statistic", "full"])
def test_zeros_without_memory(record: Record, data: str, dedup: str) -> None:
    """Autograd stands in for zero gradients with tensors that have a size and no bytes."""
    zero = torch._efficientzerotensor((2, 3))
    rank = record(lambda: zero.exp(), data=data, dedup=dedup)
    (value,) = seen_by_exp(rank)
    if data in ("tensor", "full"):
        assert value.tensor().tolist() == [[0] * 3] * 2
    if data in ("statistic", "full"):
        assert (value.stats.max, value.stats.zero) == (0, 6)
    assert rank.notes == []


def test_a_version_knows_each_of_its_values_and_the_next_none() -> None:
    state = StorageState(1, 64, 0)
    values = {("geometry", n): (TREE_VALUE, n) for n in range(3)}
    for geometry, value in values.items():
        state.add_value(geometry, value)
    assert {state.place: state.value, **(state.others or {})} == values
    state.bump()
    assert (state.place, state.value, state.others) == (None, None, None)
