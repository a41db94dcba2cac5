"""What gradient clipping changed: each parameter's gradient before and after, and the norm it was clipped by.

Usage: python examples/gradient_clipping.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "clipping-dump"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

with DumpMode(DumpConfig(path=path, data="tensor", overwrite=True), model=model) as dump:
    (model(torch.randn(4, 8)) * 100).square().mean().backward()
    with dump.scope("clip"):
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        dump.save("norm", norm)
    for name, parameter in model.named_parameters():
        dump.save(f"clipped {name}", parameter.grad)

rank = open_dump(path).step(0).rank(0)
print(f"norm of all gradients: {rank.saved['norm'].tensor():.2f}")
for name, before in rank.gradients.items():  # as backward left them
    after = rank.saved[f"clipped {name}"].tensor()
    print(f"{name:<9} {before.tensor().norm():10.3f} -> {after.norm():.3f}")
print("the ops that did it:", [call.name for call in rank["Scope.clip.0.forward"].children][:4], "...")
