"""References of norms, against torch's own and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aten_dump.references import norms

from .leaves import gradients, leaf


def test_rms_norm() -> None:
    x, gamma = leaf(2, 3, 8), leaf(8)
    found, rstd = norms.rms_norm(x, gamma, 1e-3)
    expected = F.rms_norm(x, (8,), gamma, 1e-3)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    mine = norms.rms_norm_backward(grad, x.detach(), gamma.detach(), rstd.detach())
    torch.testing.assert_close(mine, gradients(expected, grad, x, gamma))


def test_of_a_sum() -> None:
    x, other, gamma = (leaf(2, 8).detach() for _ in range(3))
    found, rstd, added = norms.add_rms_norm(x, other, gamma[0], 1e-3)
    torch.testing.assert_close(found, F.rms_norm(x + other, (8,), gamma[0], 1e-3))
    assert torch.equal(added, x + other) and rstd.shape == (2, 1)


def test_layer_norm() -> None:
    x, weight, bias = leaf(2, 3, 8), leaf(8), leaf(8)
    expected = F.layer_norm(x, (8,), weight, bias, 1e-3)
    assert torch.equal(norms.layer_norm(x, [8], weight, bias, 1e-3), expected)
    grad, (_, mean, rstd) = torch.randn_like(expected), torch.native_layer_norm(x, [8], weight, bias, 1e-3)
    given = (x, [8], mean, rstd, weight, bias)
    found = norms.layer_norm_grad(grad, *(one.detach() if isinstance(one, torch.Tensor) else one for one in given))
    torch.testing.assert_close(found, gradients(expected, grad, x, weight, bias))
