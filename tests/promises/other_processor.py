"""Trains a small attention in bfloat16 with noise of its own: python -m tests.promises.other_processor DUMP WEIGHTS."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode

WIDTH, HEADS, LENGTH = 48, 4, 15  # 12 elements a head fill no vector: other code runs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y: Tensor = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0).transpose(1, 2).flatten(2)
        )
        return y


def main(path: Path, weights: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention()).bfloat16()
    if weights.exists():  # normal numbers are rounded otherwise on another processor
        model.load_state_dict(torch.load(weights))
    else:
        torch.save(model.state_dict(), weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        for _ in range(2):
            noise = torch.randn(2, LENGTH, WIDTH)
            F.mse_loss(model(noise.bfloat16()).float(), noise.roll(1, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
