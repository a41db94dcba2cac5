"""What the tests of references share: leaves in float64, and autograd's gradients."""

from __future__ import annotations

import torch
from torch import Tensor

WIDE = torch.float64


def gradients(result: Tensor, grad: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(result, leaves, grad)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=WIDE, requires_grad=True)
