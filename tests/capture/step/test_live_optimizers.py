"""Optimizers that are found by what they hold."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from aten_dump.capture.step.live_optimizers import LiveOptimizers


def test_an_optimizer_is_found_by_what_it_holds_and_is_not_kept_alive() -> None:
    layers = {"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)}
    names = {id(parameter): name for name, layer in layers.items() for parameter in layer.parameters()}

    def held_by(optimizer: torch.optim.Optimizer) -> list[str]:
        return [names.get(id(parameter), "") for group in optimizer.param_groups for parameter in group["params"]]

    def holding(name: str) -> set[int]:
        return {id(one) for one in known.holding(frozenset({name}), held_by)}

    known = LiveOptimizers()
    first = torch.optim.SGD(layers["first"].parameters(), 0.1)
    assert id(first) in holding("first")
    second = torch.optim.SGD(layers["second"].parameters(), 0.1)
    assert {id(first), id(second)} <= holding("second")
    gone = weakref.ref(second)
    del second
    gc.collect()
    assert gone() is None
    again = torch.optim.SGD(layers["second"].parameters(), 0.1)
    assert id(again) in holding("second"), "one that was known is gone: they are looked for again"
