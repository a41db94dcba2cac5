"""Optimizers in one kernel and in kernels on lists: a step on the device is one on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": SGD,
    "SGD with momentum": partial(SGD, momentum=0.9, nesterov=True),
    "Adagrad": Adagrad,
    "Adam": Adam,
    "AdamW": partial(AdamW, amsgrad=True),
}


def trained(make: Callable[..., Optimizer], device: str, **how: bool) -> list[torch.Tensor]:
    """Return parameters after three steps, and the optimizer's state."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in ((4, 3), (5,))]
    optimizer = make(params, lr=0.1, **how)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(device)
        optimizer.step()
    state = [value for param in params for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
    return [tensor.detach().cpu() for tensor in (*params, *state)]


@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_that_of_the_cpu(name: str, how: str) -> None:
    found, expected = (trained(OPTIMIZERS[name], device, **{how: True}) for device in ("npu", "cpu"))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
