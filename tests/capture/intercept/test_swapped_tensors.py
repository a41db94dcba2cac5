"""Tensors are swapped as in the bare program: by ``torch.utils.swap_tensors``, and by ``Module.to`` of subclasses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.intercept.swapped_tensors import SwappedTensors
from aten_dump.capture.step.module_paths import ModulePaths

ORIGINAL = torch.utils.swap_tensors


def of_two() -> nn.Module:
    """Return a layer whose parameters are tensor subclasses, which ``to`` converts by swapping."""
    layer = nn.Linear(2, 2)
    for name, one in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(TwoTensor(one.detach(), one.detach().clone())))
    return layer


def test_in_a_step_between_steps_and_after_them(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), of_two())
    plain = model[0]
    with DumpMode(DumpConfig(path=tmp_path / "dump", steps="0|2"), model=model) as dump:
        for step in range(3):
            model[1].to(torch.float64 if step % 2 else torch.float32)
            torch.utils.swap_tensors(plain.weight, nn.Parameter(torch.full((2, 2), float(step))))
            assert plain.weight[0, 0].item() == step
            plain(torch.ones(1, 2)).sum().backward()
            dump.step()
            assert (torch.utils.swap_tensors is ORIGINAL) == (step != 1)
        model[1].to(torch.float64)
    model[1].to(torch.float32)
    assert torch.utils.swap_tensors is ORIGINAL
    torch.utils.swap_tensors(plain.weight, nn.Parameter(torch.ones(2, 2)))
    for step in (0, 2):
        assert "0.weight" in open_dump(tmp_path / "dump").step(step).rank(0).gradients
    assert dump.current_step == 3


def test_torch_is_left_as_it_was_and_no_parameter_is_referred_to() -> None:
    model = nn.Linear(2, 2)
    paths = ModulePaths(model)
    swapped = SwappedTensors(paths)
    paths.refresh()
    swapped.install()
    swapped.install()
    assert torch.utils.swap_tensors is not ORIGINAL and paths.parameter(id(model.weight)) is not None
    swapped.remove()
    assert torch.utils.swap_tensors is ORIGINAL and paths.parameter(id(model.weight)) is None
