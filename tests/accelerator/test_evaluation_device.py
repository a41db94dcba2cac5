"""`compare` evaluates heavy ops in float64 on a device, and the rest on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode, ReplayError, compare
from tests import devices


class Seen(TorchDispatchMode):
    """The kinds of devices on which products of float64 run."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm) and args[1].dtype is torch.float64:
            self.kinds.add(args[1].device.type)
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """One layer of a transformer, attention fused or written out."""

    def __init__(self, *, is_fused: bool, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.qkv, self.out = nn.LayerNorm(64, eps), nn.Linear(64, 192), nn.Linear(64, 64)
        self.is_fused = is_fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.is_fused:
            made = F.scaled_dot_product_attention(q, k, v)
        else:
            made = (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v
        found: torch.Tensor = x + self.out(made)
        return found


def record(path: Path, model: Block) -> Path:
    x = torch.randn(4, 96, 64, generator=torch.Generator().manual_seed(1))
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model):
        model(x).square().mean().backward()
    return path


@pytest.mark.parametrize(("eps", "code"), [(1e-5, 0), (1e-2, 1)])
def test_heavy_ops_run_on_the_device_and_the_verdict_is_the_same(tmp_path: Path, eps: float, code: int) -> None:
    target = record(tmp_path / "target", Block(is_fused=False, eps=eps))
    baseline = record(tmp_path / "baseline", Block(is_fused=True))
    with Seen() as seen:
        found = compare(target, baseline, device=devices.kind())
    assert found.exit_code == code, found.answer()
    assert devices.kind() in seen.kinds
    alone = compare(target, baseline)
    assert found.answer() == alone.answer()


def test_what_a_device_cannot_run_the_cpu_runs(tmp_path: Path) -> None:
    """Nothing comes back from the meta device."""
    target = record(tmp_path / "target", Block(is_fused=False, eps=1e-2))
    baseline = record(tmp_path / "baseline", Block(is_fused=True))
    with Seen() as seen:
        found = compare(target, baseline, device="meta")
    assert {"meta", "cpu"} <= seen.kinds
    assert found.answer() == compare(target, baseline).answer()


def test_a_device_that_is_not_here_is_refused(tmp_path: Path) -> None:
    target = record(tmp_path / "target", Block(is_fused=False))
    with pytest.raises(ReplayError, match="device is cuda:9"):
        compare(target, target, device="cuda:9")
