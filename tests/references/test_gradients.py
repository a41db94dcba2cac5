"""References of gradients that are ops of their own, against autograd's, and of a step of AdamW."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aten_dump.references import gradients as ops

from .leaves import WIDE, gradients, leaf


@pytest.mark.parametrize("dim", [0, 1])
def test_gather_sends_gradients_back_to_where_it_read(dim: int) -> None:
    x, index = leaf(3, 4), torch.tensor([[0, 2, 0, 1], [2, 2, 1, 0]])
    expected = x.gather(dim, index)
    grad = torch.randn_like(expected)
    found = ops.gather_backward(grad, [3, 4], dim, index, False)
    torch.testing.assert_close(found, *gradients(expected, grad, x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy(reduction: str, weighted: bool) -> None:
    x, target = leaf(3, 4), torch.rand(3, 4, dtype=WIDE)
    weights = [torch.rand(4, dtype=WIDE) if weighted else None for _ in range(2)]
    loss = F.binary_cross_entropy_with_logits(x, target, weights[0], reduction=reduction, pos_weight=weights[1])
    grad = torch.randn_like(loss)
    code = ["none", "mean", "sum"].index(reduction)
    found = ops.binary_cross_entropy_backward(grad, x.detach(), target, *weights, code)
    torch.testing.assert_close(found, *gradients(loss, grad, x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("log_target", [True, False])
def test_losses(reduction: str, log_target: bool) -> None:
    x, target, code = leaf(3, 4), torch.rand(3, 4, dtype=WIDE), ["none", "mean", "sum"].index(reduction)
    loss = F.l1_loss(x, target, reduction=reduction)
    grad = torch.randn_like(loss)
    torch.testing.assert_close(ops.l1_loss_backward(grad, x.detach(), target, code), *gradients(loss, grad, x))
    loss = F.kl_div(x, target, reduction=reduction, log_target=log_target)
    found = ops.kl_div_backward(grad, x.detach(), target, code, log_target=log_target)
    torch.testing.assert_close(found, *gradients(loss, grad, x))


@pytest.mark.parametrize("dim", [None, 0, -1])
def test_repeated_elements(dim: int | None) -> None:
    x = leaf(2, 3)
    expected = x.repeat_interleave(2, dim)
    grad = torch.randn_like(expected)
    found = ops.repeat_interleave_backward_int(grad, x.detach(), 2, dim)
    torch.testing.assert_close(found, *gradients(expected, grad, x))
    times = torch.tensor([0, 2, 1] * (2 if dim is None else 1))[: 2 if dim == 0 else None]
    expected = x.repeat_interleave(times, dim)
    grad = torch.randn_like(expected)
    found = ops.repeat_interleave_backward_tensor(grad, x.detach(), times, dim)
    torch.testing.assert_close(found, *gradients(expected, grad, x))


def test_adam_w() -> None:
    weight, grads = torch.randn(7, dtype=WIDE), torch.randn(3, 7, dtype=WIDE)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    out: list[Tensor] = [weight.clone(), torch.zeros(7, dtype=WIDE), torch.zeros(7, dtype=WIDE)]
    for step, grad in enumerate(grads):
        parameter.grad = grad
        optimizer.step()
        powers = 0.9**step, 0.99**step
        found = ops.apply_adam_w(*powers, 0.1, 0.01, 0.9, 0.99, 1e-8, grad, None, False, False, out=out)
    torch.testing.assert_close(out[0], parameter.detach())
    assert all(a is b for a, b in zip(found, out, strict=True))
    with pytest.raises(NotImplementedError):
        ops.apply_adam_w(1.0, 1.0, 0.1, 0.0, 0.9, 0.9, 1e-8, grad, None, True, False, out=out)
