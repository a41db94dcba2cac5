"""Only tensors of N elements and more: as files of their own, from a recording of all.

Usage: python examples/large_tensors.py [DUMP]
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

LEAST_ELEMENTS = 512
path = sys.argv[1] if len(sys.argv) > 1 else "large-dump"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))

with DumpMode(DumpConfig(path=path, io="output", data="tensor", overwrite=True), model=model):
    model(torch.randn(16, 8)).sum().backward()

rank = open_dump(path).step(0).rank(0)
large = {}
for call in rank.calls.filter(kind="aten"):
    for slot, value in call.output_values():
        if value.numel >= LEAST_ELEMENTS and value.has_data:
            large[f"{call.name}.{slot}"] = value.tensor().contiguous()
out = Path(path) / f"from-{LEAST_ELEMENTS}-elements.safetensors"
save_file(large, out)
print(f"{len(large)} of {len(rank.values)} tensors have {LEAST_ELEMENTS} elements or more; they are in {out}")
