"""Tensors that have no bytes of their own: what their values say, and that their parts are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.capture.values.tensors_without_memory import _SPARSE_PARTS
from tests.capture.bits import assert_same, calls, values

Record = Callable[..., Any]


def sparse(layout: torch.layout) -> torch.Tensor:
    x = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 5], [0, 6, 0, 0]])
    block = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return x.to_sparse(layout=layout, **block)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", _SPARSE_PARTS, ids=str)
def test_a_sparse_tensor_names_its_parts(record: Record, layout: torch.layout) -> None:
    x = sparse(layout)
    rank = record(lambda: x.to_dense(), data="full")
    call = next(call for call in calls(rank, kind="api") if call.name.startswith("Tensor.to_dense"))
    (value,) = values(call.inputs)
    extra = value.extra
    assert extra["layout"] == str(layout).removeprefix("torch.")
    assert set(extra["parts"]) == set(_SPARSE_PARTS[layout])
    for name, method in _SPARSE_PARTS[layout].items():
        part = rank.value_by_id(extra["parts"][name])
        assert_same(getattr(x, method)(), part.tensor(), name)
    assert ("coalesced" in extra) == (layout is torch.sparse_coo)


def test_a_wrapper_is_recorded_by_its_shape(record: Record) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    rank = record(lambda: nested * 2, data="full")
    wrappers = [value for value in rank.values if value.extra and "NestedTensor" in str(value.extra.get("class"))]
    assert wrappers and all(value.opaque and not value.has_data for value in wrappers)
    assert [note.code for note in rank.notes if note.code == "wrapped_tensors"] == ["wrapped_tensors"]


def test_a_sum_that_was_not_computed_has_no_data(record: Record) -> None:
    x = torch.ones(3, requires_grad=True)
    rank = record(lambda: torch.mul(x, x).sum().backward(), data="structure")
    (found,) = [value for value in rank.values if value.extra and value.extra.get("sum")]
    assert (found.shape, found.opaque, found.has_data) == ((3,), True, False)
