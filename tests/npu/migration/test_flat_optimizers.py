"""Optimizers of torch_npu, which move parameters into one long tensor, against those of PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_npu

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from tests.npu.migration.models import PROGRAMS

Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, Make]] = {
    "AdamW": (torch_npu.optim.NpuFusedAdamW, torch.optim.AdamW),
    "SGD": (
        partial(torch_npu.optim.NpuFusedSGD, momentum=0.9),
        partial(torch.optim.SGD, momentum=0.9),
    ),
}


def trained(make: Make, device: str, path: Path, program: str = "llama") -> Path:
    model_of, loss_of = PROGRAMS[program]
    torch.manual_seed(0)
    model = model_of().train().to(device)
    optimizer = make(model.parameters(), lr=1e-2, weight_decay=1e-2)
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, device).backward()
            optimizer.step()
            dump.step()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("program", ["llama", "resnet"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_honest_runs_agree(tmp_path: Path, name: str, program: str) -> None:
    makes = OPTIMIZERS[name]
    found = compare(*(trained(make, d, tmp_path / d, program) for make, d in zip(makes, ("npu", "cpu"), strict=True)))
    assert found.verdict == "within", found.answer()


def test_a_wrong_moment_is_found(tmp_path: Path) -> None:
    npu, cpu = (partial(make, betas=betas) for make, betas in zip(OPTIMIZERS["AdamW"], BETAS, strict=True))
    found = compare(trained(npu, "npu", tmp_path / "npu"), trained(cpu, "cpu", tmp_path / "cpu"))
    assert found.verdict == "different" and found.first is not None
    place = found.first[1].row.place
    assert place.phase == "optimizer" and "NpuFusedAdamW._group_step" in place.source, found.answer()


BETAS = (0.9, 0.99), (0.9, 0.999)


def test_gradients_and_parameters_are_recorded_as_they_are(tmp_path: Path) -> None:
    """What an optimizer reads and writes by its long tensors is what lies there, also where others wrote it."""
    step = open_dump(trained(OPTIMIZERS["AdamW"][0], "npu", tmp_path / "npu")).step(1).rank(0)
    call: Any = next(call for call in step.calls.filter(op="aten::add_.Tensor", phase="optimizer"))
    read = call.inputs[0][1].tensor()
    gradients = [value.tensor().flatten() for value in step.gradients.values()]
    assert float(torch.cat(gradients).abs().sum()) > 0
    assert torch.isclose(read.abs().sum(), torch.cat(gradients).abs().sum())
