"""Which activations torch.autograd.graph.save_on_cpu would move: what forward keeps for backward, by module.

Usage: python examples/what_save_on_cpu_would_move.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "kept-dump"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))

with DumpMode(DumpConfig(path=path, data="structure", overwrite=True), model=model):
    model(torch.randn(128, 64)).sum().backward()

saved = open_dump(path).step(0).rank(0).saved_for_backward()
moved = {}
for kept in saved:
    for value in kept.values:
        if not value.from_outside:  # parameters and inputs are there anyway
            module = kept.call.module if kept.call is not None else ""
            moved.setdefault(value.storage, (value.nbytes, module, kept.node))
for nbytes, module, node in sorted(moved.values(), reverse=True):
    print(f"{nbytes:>8,} bytes  module {module or '(the model)'}, for {node}")
print(f"{saved.nbytes:,} bytes are kept for backward; save_on_cpu would move {sum(n for n, *_ in moved.values()):,}")
