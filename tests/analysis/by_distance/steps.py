"""Records small programs, on the machine's own kernels or on a device that sums matrix products otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode
from tests.analysis.transformer import OtherDevice

Body = Callable[[int], object]  # what a step of this number does


def record(
    path: Path,
    body: Body,
    model: nn.Module | None = None,
    *,
    steps: int = 1,
    device: OtherDevice | None = None,
    **config: Any,
) -> Path:
    """Record steps of a program; `device` stands below the recorder."""
    with (
        device or nullcontext(),
        DumpMode(DumpConfig(path=str(path), **({"data": "tensor"} | config)), model=model) as dump,
    ):
        for step in range(steps):
            torch.manual_seed(step)
            body(step)
            dump.step()
    return path


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
