"""What a node saved is read without unpacking it, and left alone where it is under hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.capture.torch_internals.saved_tensors import saved_tensors_of
from tests.torch_features import needs_saved_tensors


def saved(tensor: torch.Tensor) -> tuple[list[torch.Tensor], bool]:
    tensors, packed, is_hooked = saved_tensors_of(tensor.grad_fn)
    assert packed == [], "of hooks of ours there are none"
    return tensors, is_hooked


def same_memory(tensors: list[torch.Tensor], *expected: torch.Tensor) -> bool:
    return sorted(t.data_ptr() for t in tensors) == sorted(t.data_ptr() for t in expected)


@needs_saved_tensors
def test_inputs_and_results_that_a_formula_needs() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert same_memory(saved(x * w)[0], x, w)
    y = x.exp()
    assert same_memory(saved(y)[0], y)
    assert saved(x + w) == ([], False)


@needs_saved_tensors
def test_tensors_that_are_saved_as_a_list() -> None:
    x, rows = torch.ones(2, 3, requires_grad=True), torch.tensor([1])
    assert same_memory(saved(x[rows])[0], rows)


@needs_saved_tensors
def test_those_under_hooks_are_left_alone() -> None:
    x, seen = torch.ones(2, requires_grad=True), []

    def unpack(packed: Any) -> torch.Tensor:
        seen.append(packed)
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(lambda t: "packed", unpack):
        y = x.exp()
    assert saved(y) == ([], True) and seen == []
    y.sum().backward()
    assert seen == ["packed"]


@needs_saved_tensors
def test_what_was_written_since_is_read_without_an_error() -> None:
    """Unpacking it would raise: that is the backward's to do."""
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y.detach().add_(1)
    assert same_memory(saved(y)[0], y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@needs_saved_tensors
def test_a_graph_that_was_freed_has_saved_nothing() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y.sum().backward()
    assert saved(y) == ([], False)
