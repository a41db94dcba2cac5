"""The backward of a Python-level call holds the gradients that torch.autograd.grad gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.capture.bits import api_call, assert_same, backward_of, calls, is_value
from tests.models import seed_all

Record = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A function, how to make its arguments, and where its tensors stand in the outputs of `.backward`."""

    api: str
    make: Callable[[], list[Tensor]]
    call: Callable[..., Tensor]
    slots: tuple[Any, ...]  # per tensor: position, or (position, index in list), or keyword


def _randn(*shapes: tuple[int, ...]) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(shape) for shape in shapes]


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


TOKENS = torch.tensor([[1, 2, 2], [0, 5, 1]])
LABELS = torch.tensor([0, 3, 2, 1])

# Functions of torch.nn.functional that are written in Python pass what they got by position on by keyword.
CASES = {
    "linear_3d_bias": Case("linear", _randn((2, 3, 5), (4, 5), (4,)), lambda x, w, b: F.linear(x, w, b), (0, 1, 2)),
    "linear_keywords": Case("linear", _randn((2, 3, 5), (4, 5), (4,)), lambda x, w, b: F.linear(x, weight=w, bias=b), (0, "weight", "bias")),
    "layer_norm": Case("layer_norm", _randn((3, 4, 6), (6,), (6,)), lambda x, w, b: F.layer_norm(x, (6,), w, b), (0, "weight", "bias")),
    "layer_norm_keywords": Case("layer_norm", _randn((3, 6), (6,)), lambda x, w: F.layer_norm(x, (6,), weight=w), (0, "weight")),
    "matmul_broadcast": Case("matmul", _randn((2, 1, 3, 4), (5, 4, 6)), lambda x, y: torch.matmul(x, y), (0, 1)),
    "matmul_method": Case("matmul", _randn((2, 3, 4), (4, 6)), lambda x, y: x.matmul(y), (0, 1)),
    "add_broadcast": Case("add", _randn((3, 4), (4,)), lambda x, y: torch.add(x, y, alpha=2), (0, 1)),
    "add_in_place": Case("add_", _randn((3, 4), (4,)), lambda x, y: x.add_(y), (0, 1)),
    "mul_in_place": Case("mul_", _randn((3, 4), (3, 4)), lambda x, y: x.mul_(y), (0, 1)),
    "cross_entropy": Case("cross_entropy", _randn((4, 5)), lambda x: F.cross_entropy(x, LABELS.to(x.device), label_smoothing=0.1), (0,)),
    "attention": Case("scaled_dot_product_attention", _randn(*[(1, 2, 4, 8)] * 3), _sdpa, (0, 1, 2)),
    "embedding": Case("embedding", _randn((6, 4)), lambda w: F.embedding(TOKENS.to(w.device), w), (1,)),
    "conv2d": Case("conv2d", _randn((2, 3, 6, 6), (4, 3, 3, 3), (4,)), lambda x, w, b: torch.conv2d(x, w, b, padding=1), (0, 1, 2)),
    "batch_norm": Case("batch_norm", _randn((4, 3, 2, 2), (3,), (3,)), lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (0, "weight", "bias")),
    "max_pool2d": Case("max_pool2d", _randn((1, 2, 4, 4)), lambda x: F.max_pool2d(x, 2), (0,)),
    "dropout": Case("dropout", _randn((8, 8)), lambda x: F.dropout(x, 0.5), (0,)),
    "cat": Case("cat", _randn((2, 3), (4, 3)), lambda x, y: torch.cat([x, y]), ((0, 0), (0, 1))),
    "stack_partly": Case("stack", _randn((2, 3)), lambda x: torch.stack([torch.ones(2, 3), x]), ((0, 1),)),
    "einsum": Case("einsum", _randn((2, 3), (3, 4)), lambda x, y: torch.einsum("ij,jk->ik", x, y), (1, 2)),
    "getitem": Case("__getitem__", _randn((4, 3)), lambda x: x[1:3], (0,)),
    "softmax": Case("softmax", _randn((3, 4)), lambda x: x.softmax(-1), (0,)),
    "gelu": Case("gelu", _randn((3, 4)), lambda x: F.gelu(x), (0,)),
    "where": Case("where", _randn((3, 4), (3, 4)), lambda x, y: torch.where(torch.eye(3, 4) > 0, x, y), (1, 2)),
    "permute_view": Case("permute", _randn((2, 3, 4)), lambda x: x.permute(2, 0, 1), (0,)),
    "to_dtype": Case("to", _randn((2, 3)), lambda x: x.to(torch.float64), (0,)),
}  # fmt: skip


def _slot(outputs: Any, slot: Any) -> Any:
    for key in slot if isinstance(slot, tuple) else (slot,):
        outputs = outputs[key]
    return outputs


def _reference(case: Case, leaf: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The output, the gradient sent to it and the gradients it must send, by a bare run."""
    sources, inputs = _inputs(case, leaf)
    seed_all(7)
    out = case.call(*inputs)
    g = torch.randn(out.shape, dtype=out.dtype)
    return out.detach().clone(), g, list(torch.autograd.grad(out, sources, g))


def _inputs(case: Case, leaf: bool) -> tuple[list[Tensor], list[Tensor]]:
    """What gradients are asked for, and what is passed: the same tensors, or a product with 1 of them."""
    seed_all(3)
    sources = [t.requires_grad_() for t in case.make()]
    return sources, (sources if leaf else [t * 1 for t in sources])


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "inner"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_autograd(record: Record, name: str, leaf: bool) -> None:
    case = CASES[name]
    if leaf and case.api.endswith("_"):
        pytest.skip("a leaf cannot be written in place")
    out, g, expected = _reference(case, leaf)
    sources, inputs = _inputs(case, leaf)

    def body() -> None:
        seed_all(7)
        (case.call(*inputs) * g).sum().backward()

    rank = record(body, data="tensor")
    forward = api_call(rank, case.api)
    backward = backward_of(rank, forward)
    assert backward.forward.id == forward.id
    assert backward.id in [c.id for c in forward.backward]
    assert (backward.kind, backward.phase) == ("api", "backward")
    assert_same(out, rank.tensor(f"{forward.name}.output.0"), "output")
    assert_same(g, rank.tensor(f"{backward.name}.input.0"), "gradient of the output")
    for i, (slot, gradient, source) in enumerate(zip(case.slots, expected, sources, strict=True)):
        found = _slot(backward.outputs, slot)
        assert is_value(found), f"no gradient for tensor {i} at {slot}: {backward.outputs}"
        assert_same(gradient, found.tensor(), f"gradient sent to tensor {i}")
        assert_same(gradient, source.grad, f"gradient in tensor {i}")  # type: ignore[arg-type]


def test_slot_names_of_gradients(record: Record) -> None:
    x, w, b = (
        torch.randn(2, 5, requires_grad=True),
        torch.randn(4, 5, requires_grad=True),
        torch.randn(4, requires_grad=True),
    )
    rank = record(lambda: F.linear(x, w, b).sum().backward(), data="tensor")
    for i, tensor in enumerate((x, w, b)):
        assert_same(tensor.grad, rank.tensor(f"Functional.linear.0.backward.output.{i}"))  # type: ignore[arg-type]


def test_an_input_without_gradient_has_none(record: Record) -> None:
    x, w = torch.randn(2, 5), torch.randn(4, 5, requires_grad=True)
    rank = record(lambda: F.linear(x, w).sum().backward(), data="tensor")
    outputs = rank["Functional.linear.0.backward"].outputs
    assert outputs[0] is None
    assert_same(w.grad, outputs[1].tensor())  # type: ignore[arg-type]


def test_same_tensor_twice(record: Record) -> None:
    """x * x has two arguments and one gradient: that of x is named at both."""
    x, g = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    rank = record(lambda: ((x * x) * g).sum().backward(), data="tensor")
    backward = backward_of(rank, api_call(rank, "mul"))
    sent = [value.tensor() for value in backward.outputs]
    assert len(sent) == 2
    for gradient in sent:
        assert_same(x.grad, gradient)  # type: ignore[arg-type]


def test_two_outputs_of_which_one_is_used(record: Record) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    g = torch.randn(3, 4)

    def body() -> None:
        _first, second = torch.split(x, 3)
        (second * g).sum().backward()

    rank = record(body, data="tensor")
    backward = backward_of(rank, api_call(rank, "split"))
    first, second = backward.inputs[0]
    assert first is None, "nothing arrived there"
    assert_same(g, second.tensor())
    assert_same(torch.cat([torch.zeros(3, 4), g]), backward.outputs[0].tensor())


def test_output_used_three_times(record: Record) -> None:
    """The gradient at the output is the sum of all that arrives there."""
    x = torch.randn(3, 4, requires_grad=True)
    weights = [torch.randn(3, 4) for _ in range(3)]

    def body() -> None:
        y = torch.tanh(x)
        (y * weights[0] + y * weights[1] + y * weights[2]).sum().backward()

    rank = record(body, data="tensor")
    backward = backward_of(rank, api_call(rank, "tanh"))
    leaf = torch.tanh(x.detach()).requires_grad_()
    (leaf * weights[0] + leaf * weights[1] + leaf * weights[2]).sum().backward()
    assert_same(leaf.grad, rank.tensor(f"{backward.name}.input.0"))  # type: ignore[arg-type]
    assert_same(x.grad, rank.tensor(f"{backward.name}.output.0"))  # type: ignore[arg-type]


def test_a_shared_input_gets_only_this_calls_part(record: Record) -> None:
    """x feeds two calls: each backward holds its own part, not their sum."""
    x, w1, w2 = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4, 3)
    x.requires_grad_()
    y = x * 1

    def body() -> None:
        (F.linear(y, w1) + F.linear(y, w2)).sum().backward()

    y = x * 1
    rank = record(body, data="tensor")
    ones = torch.ones(2, 4)
    assert_same(ones @ w1, rank.tensor("Functional.linear.0.backward.output.0"))
    assert_same(ones @ w2, rank.tensor("Functional.linear.1.backward.output.0"))


def test_every_api_gradient_of_a_chain_agrees_with_the_next_one(record: Record) -> None:
    """What one call sends to its input is what arrives at the call before it."""
    x = torch.randn(4, 4, requires_grad=True)

    def body() -> None:
        y = x
        for _ in range(5):
            y = torch.tanh(torch.add(y, 1.0))
        y.sum().backward()

    rank = record(body, data="hash")
    for n in range(5):
        tanh, add = rank[f"Torch.tanh.{n}.backward"], rank[f"Torch.add.{n}.backward"]
        assert tanh.outputs[0].hash == add.inputs[0][0].hash is not None
    assert len(calls(rank, kind="api", phase="backward")) >= 11


def test_inference_has_no_backward_calls(record: Record) -> None:
    x = torch.randn(3, requires_grad=True)

    def body() -> None:
        with torch.no_grad():
            torch.exp(x)
        torch.exp(x)

    rank = record(body)
    assert calls(rank, phase="backward") == []
    assert [list(c.backward) for c in calls(rank, kind="api")] == [[], []]
