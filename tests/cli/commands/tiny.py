"""Programs of a few ops, recorded: honest ones, a wrong one, one that makes NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aten_dump import DumpConfig, DumpMode


def record(path: Path, *, wrong: bool = False, nan: bool = False, steps: int = 1, **config: Any) -> Path:
    """Record a product and its sum; `wrong` adds one to its factors before."""
    torch.manual_seed(0)
    with DumpMode(DumpConfig(path, **{"data": "full", "level": "aten", "stacks": False, **config})) as dump:
        for _ in range(steps):
            x = torch.randn(8, 8)
            if wrong:
                x = x + 1
            y = torch.mm(x, x)
            if nan:
                y = (y * 0 - 1).log()
            y.sum()
            dump.step()
    return path


def spoil(path: Path, step: int = 0) -> None:
    """Change one byte of the first shard, so that its checksum is wrong."""
    shard = next((path / f"step{step}" / "rank0").glob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
