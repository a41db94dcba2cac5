"""Adapters and norms merged into the weights before them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..tasks import Run, Task
from .ports import linears, run_once

SCALE, RANK = 2.0, 2


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(0.3 * torch.randn(RANK, base.in_features))
        self.b = nn.Parameter(0.3 * torch.randn(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.a.T) @ self.b.T * SCALE


def _adapt(model: nn.Module) -> list[str]:
    """Put adapters on every second linear; return their names."""
    torch.manual_seed(77)
    names = linears(model)[::2]
    for name in names:
        model.set_submodule(name, Adapted(model.get_submodule(name)))
    return names


def adapters(on: Run, task: Task) -> None:
    _adapt(task.model)
    run_once(on, task, task.model)


@torch.no_grad()
def merged_adapters(on: Run, task: Task) -> None:
    model = task.model
    names = _adapt(model)
    for number, name in enumerate(names):
        one = model.get_submodule(name)
        assert isinstance(one, Adapted)
        last = number == len(names) - 1
        scale, many, a = SCALE, 1, one.a
        if last and on.bug("scale lost"):
            scale = 1.0
        if last and on.bug("merged twice"):
            many = 2
        if last and on.bug("left out when merged"):
            many = 0
        if last and on.bug("rank not in the scale"):
            scale = SCALE / RANK
        if last and on.bug("half of the adapter"):
            a = torch.cat([a[:1], torch.zeros_like(a[1:])])
        if last and any(one.startswith("bug") for one in on.chosen):
            on.guilty.update((name, f"{name}.base"))
        one.base.weight.add_(one.b @ a * scale * many)
        model.set_submodule(name, one.base)
    run_once(on, task, model)


@torch.no_grad()
def merged_norms(on: Run, task: Task) -> None:
    """Fold each batch norm into the convolution before it."""
    model = task.model
    for number, stage in enumerate((model.stage1, model.stage2)):
        for conv_name, norm_name in (("conv", "norm"), ("conv2", "norm2")):
            conv, norm = getattr(stage, conv_name), getattr(stage, norm_name)
            here = number == 1 and conv_name == "conv"
            eps = 0.1 if here and on.bug("another eps when merged") else norm.eps
            factor = norm.weight * (norm.running_var + eps).rsqrt()
            before = torch.zeros_like(norm.bias) if conv.bias is None else conv.bias
            mean = norm.running_mean
            if here and on.bug("running mean forgotten"):
                mean = torch.zeros_like(mean)
            if here and on.bug("bias of the convolution forgotten"):
                before = torch.zeros_like(before)
            if here and on.bug("norm's weight forgotten"):
                factor = factor / norm.weight
            if here and on.bug("bias scaled twice"):
                before = before * factor
            new = nn.Conv2d(conv.in_channels, conv.out_channels, 3, conv.stride, 1)
            new.weight.copy_(conv.weight * factor[:, None, None, None])
            new.bias.copy_((before - mean) * factor + norm.bias)
            setattr(stage, conv_name, new)
            setattr(stage, norm_name, nn.Identity())
            if here and any(one.startswith("bug") for one in on.chosen):
                on.guilty.update(("stage2.conv", "stage2.norm"))
    run_once(on, task, model)


def norms(on: Run, task: Task) -> None:
    run_once(on, task, task.model)


KINDS = {
    "adapters merged": (merged_adapters, adapters, ""),
    "batch norms merged": (merged_norms, norms, "convolutions"),
}
