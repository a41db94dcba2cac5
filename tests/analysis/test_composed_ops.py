"""matmul_backward and linear_backward, which are one op on some devices, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.analysis.composed_ops import composed

CPU = torch.device("cpu")


def gradients(forward: Any, given: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    return torch.autograd.grad(forward(*leaves), leaves, grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (4, 5)), ((2, 3, 4, 5), (2, 1, 5, 6)), ((4,), (4, 2)), ((3,), (3,))])
@pytest.mark.parametrize("mask", [[True, True], [True, False], [False, True], [False, False]])
def test_matmul(shapes: Any, mask: list[bool], dtype: torch.dtype) -> None:
    one, other = (torch.randn(shape, dtype=dtype) for shape in shapes)
    grad = torch.randn_like(one @ other)
    found = composed(torch.ops.aten.matmul_backward.default, CPU)(grad, one, other, mask)
    for mine, expected, wanted in zip(found, gradients(torch.matmul, (one, other), grad), mask, strict=True):
        assert (mine is not None) == wanted
        assert mine is None or torch.equal(mine, expected)


def test_linear() -> None:
    x, weight, bias = torch.randn(2, 3, 4), torch.randn(5, 4), torch.zeros(5)
    grad = torch.randn(2, 3, 5)
    found = composed(torch.ops.aten.linear_backward.default, CPU)(x, grad, weight, [True, True, True])
    expected = gradients(torch.nn.functional.linear, (x, weight, bias), grad)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_other_ops_and_devices_run_as_they_are() -> None:
    exp, backward = torch.ops.aten.exp.default, torch.ops.aten.matmul_backward.default
    assert composed(exp, CPU) is exp
    assert composed(backward, torch.device("meta")) is backward
