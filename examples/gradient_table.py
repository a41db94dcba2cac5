"""Which layers' gradients vanish or explode: a table of the gradients that arrive at each, from statistics alone.

Usage: python examples/gradient_table.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "gradient-table-dump"
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()) for _ in range(8)])

with DumpMode(DumpConfig(path=path, level="module", data="statistic", overwrite=True), model=model):
    model(torch.randn(4, 16)).square().mean().backward()

rank = open_dump(path).step(0).rank(0)
norms = {}
for layer in map(str, range(8)):
    stats = rank.module(layer).gradients[0].stats
    norms[layer] = stats.l2norm
    print(f"layer {layer}: gradient l2 norm {stats.l2norm:.3e}, greatest {max(-stats.min, stats.max):.3e}")
for name, gradient in rank.gradients.items():
    if name.endswith("weight"):
        print(f"{name:<12} gradient l2 norm {gradient.stats.l2norm:.3e}")
ratio = norms["7"] / norms["0"]
print(f"from the last layer to the first it shrinks {ratio:.0f} times" + (": it vanishes" if ratio > 100 else ""))
