"""Tensors that have no bytes of their own: what their values say, and that their parts are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.capture.memory.sparse_parts import PARTS
from aten_dump.capture.unseen import Coverage
from aten_dump.capture.values.value_table import TensorsWithoutMemory, ValueTable
from aten_dump.errors import MissingDataError
from tests.capture.bits import assert_same, calls, values
from tests.capture.values.sparse_tensors import sparse

Record = Callable[..., Any]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", PARTS, ids=str)
def test_a_sparse_tensor_names_its_parts(record: Record, layout: torch.layout) -> None:
    x = sparse(layout)
    rank = record(lambda: x.to_dense(), data="full")
    call = next(call for call in calls(rank, kind="api") if call.name.startswith("Tensor.to_dense"))
    (value,) = values(call.inputs)
    extra = value.extra
    assert extra["layout"] == str(layout).removeprefix("torch.")
    assert set(extra["parts"]) == set(PARTS[layout])
    for name, method in PARTS[layout].items():
        part = rank.value_by_id(extra["parts"][name])
        assert_same(getattr(x, method)(), part.tensor(), name)
    assert ("coalesced" in extra) == (layout is torch.sparse_coo)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", PARTS, ids=str)
def test_a_sparse_tensor_is_one_value_until_it_is_written(record: Record, layout: torch.layout) -> None:
    x = sparse(layout)
    dense = x.to_dense()

    def run() -> None:
        x.to_dense()
        x.to_dense()
        x.neg_()
        x.to_dense()
        (x._values() if layout is torch.sparse_coo else x.values()).mul_(2)
        x.to_dense()

    rank = record(run, data="full")
    seen = [values(call.inputs)[0] for call in calls(rank, kind="api") if call.name.startswith("Tensor.to_dense")]
    ids = [value.id for value in seen]
    assert ids[0] == ids[1] and len({*ids}) == 3, "the same again, and another one after each write"
    for value, factor in zip(seen, (1, 1, -1, -2), strict=True):
        assert torch.equal(value.tensor().to_dense(), (dense * factor).cpu())


IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "add_": lambda x: x.add_(x.clone()),
    "copy_": lambda x: x.copy_(x.clone() * 3),
    "foreach": lambda x: torch._foreach_neg_([x]),
    "neg_": lambda x: x.neg_(),
    "out": lambda x: torch.add(x.clone(), x.clone(), out=x),
    "t_": lambda x: x.t_(),
    "zero_": lambda x: x.zero_(),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_written_to_a_sparse_tensor_is_recorded(record: Record, name: str) -> None:
    x = sparse(torch.sparse_coo)
    before = x.to_dense()

    def run() -> None:
        x.to_dense()
        IN_PLACE[name](x)
        x.to_dense()

    rank = record(run, data="full")
    first, *_, last = (call for call in calls(rank, kind="api") if call.name.startswith("Tensor.to_dense"))
    assert torch.equal(values(first.inputs)[0].tensor().to_dense(), before.cpu())
    assert torch.equal(values(last.inputs)[0].tensor().to_dense(), x.to_dense().cpu())


def test_the_same_parts_in_another_shape_are_another_value(values: ValueTable) -> None:
    table = TensorsWithoutMemory(values._records, Coverage())
    indices, entries = torch.tensor([[0, 2]]), torch.ones(2)
    made = [
        torch.sparse_coo_tensor(indices, entries, shape, is_coalesced=known, check_invariants=False)
        for shape, known in (((3,), True), ((4,), True), ((3,), False))
    ]
    ids, again = ([table.without_storage(tensor, False, values.value_of) for tensor in made] for _ in range(2))
    assert len({*ids}) == 3 and again == ids


def test_a_wrapper_is_recorded_by_its_shape(record: Record) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    rank = record(lambda: nested * 2, data="full")
    wrappers = [value for value in rank.values if value.extra and "NestedTensor" in str(value.extra.get("class"))]
    assert wrappers and all(value.opaque and not value.has_data for value in wrappers)
    assert [note.code for note in rank.notes if note.code == "wrapped_tensors"] == ["wrapped_tensors"]


def test_gradients_of_nested_rows_are_written_to_a_wrapper_whose_memory_is_not_followed(record: Record) -> None:
    weight = torch.ones(4, 2, requires_grad=True)

    def run() -> None:
        nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged)
        rows = torch.nn.functional.linear(nested, weight).relu().unbind()
        torch.stack([row.mean(0) for row in rows]).sum().backward()

    record(run, data="full")
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((4, 2), 2.0))


def test_a_sum_that_was_not_computed_has_no_data(record: Record) -> None:
    x = torch.ones(3, requires_grad=True)
    rank = record(lambda: torch.mul(x, x).sum().backward(), data="structure")
    (found,) = [value for value in rank.values if value.extra and value.extra.get("sum")]
    assert (found.shape, found.opaque, found.has_data) == ((3,), True, False)


@pytest.mark.parametrize("level", ["aten", "module", "mix"])
def test_a_sum_of_nested_gradients_has_no_shape(record: Record, level: str) -> None:
    rows = [torch.ones(2, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)]
    layer = torch.nn.Linear(4, 4)

    def run() -> None:
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged) * 1
        (torch.mul(nested, nested) + layer(nested)).to_padded_tensor(0.0).sum().backward()

    rank = record(run, data="structure", level=level)
    assert rows[0].grad is not None and rank.notes is not None
    sums = [value for value in rank.values if value.extra and value.extra.get("sum")]
    assert all(value.opaque and value.shape == () for value in sums) and (sums or level == "module")
    for value in sums:
        with pytest.raises(MissingDataError, match="has no dtype: of a tensor whose sizes are no numbers"):
            value.dtype
