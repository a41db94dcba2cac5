"""Experts that get their tokens in another way, and routers that hesitate."""

from __future__ import annotations

import torch
from torch import Tensor

from ..programs.experts import Experts
from ..tasks import Run, Task
from .ports import original, run_once


class Grouped(Experts):
    """Tokens are sorted by expert, handed out in groups, and put back."""

    on: Run

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        experts, weights = self.chosen(flat)
        order = experts.flatten().argsort(stable=True)
        tokens = order // experts.shape[1]
        counts = torch.bincount(experts.flatten(), minlength=len(self.experts)).tolist()
        if self.on.bug("counts one off"):
            counts[0], counts[1] = counts[0] - 1, counts[1] + 1
        groups = flat[tokens].split(counts)
        if self.on.bug("one expert's tokens swapped"):
            groups = (*groups[:2], groups[2].flip(0), groups[3])
        found = torch.cat(
            [expert(group) for expert, group in zip(self.experts, groups, strict=True)]
        )  # at counts one off, one expert's tokens swapped
        if self.on.bug("over capacity dropped"):
            found = found * (torch.cat([torch.arange(n) for n in counts]) < max(counts) - 1)[:, None]
        if self.on.bug("weights not sorted"):
            found = found * weights.flatten()[:, None]
        else:
            found = found * weights.flatten()[order][:, None]  # at weights not sorted
        back = order if self.on.bug("sorted again when put back") else order.argsort()
        return found[back].view(*experts.shape, -1).sum(1).view_as(x)  # at sorted again when put back


def sorted_tokens(on: Run, task: Task) -> None:
    for layer in task.model.layers:
        layer.inner.__class__ = Grouped
        layer.inner.on = on
    run_once(on, task, task.model)


class Hesitating(Experts):
    """A router whose products are summed in another order."""

    on: Run

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.router.weight
        logits = sum(x[:, at : at + 2] @ weight[:, at : at + 2].T for at in range(14, -1, -2))
        assert isinstance(logits, Tensor)
        weights, experts = logits.softmax(-1).topk(2, -1)
        if self.on.bug("weights not brought to one"):
            return experts, weights
        return experts, weights / weights.sum(-1, keepdim=True)  # at weights not brought to one

    def forward(self, x: Tensor) -> Tensor:
        if self.on.bug("an expert left out"):
            self.experts[3].down.weight.data.zero_()
        y = super().forward(x)  # at an expert left out
        return y * 1.01 if self.on.bug("experts scaled") else y


@torch.no_grad()
def _close(task: Task) -> None:
    """Make the rows of two experts differ in the last digit."""
    for layer in task.model.layers:
        weight = layer.inner.router.weight
        weight[1] = weight[0]
        weight[1, 3] *= 1 + 1.2e-7
        weight[1, 8] *= 1 - 1.2e-7


def close_router(on: Run, task: Task) -> None:
    _close(task)
    original(on, task)


def near_ties(on: Run, task: Task) -> None:
    _close(task)
    for layer in task.model.layers:
        layer.inner.__class__ = Hesitating
        layer.inner.on = on
    run_once(on, task, task.model)


KINDS = {
    "tokens sorted by expert": (sorted_tokens, original, "experts"),
    "near ties of a router": (near_ties, close_router, "experts"),
}
