"""Activations of named layers as a dict, with the gradients that came back to them.

Usage: python examples/layer_activations.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "activations-dump"
torch.manual_seed(0)
model = nn.Sequential()
for number in range(1, 5):
    model.add_module(f"layer{number}", nn.Sequential(nn.Linear(8, 8), nn.Tanh()))

config = DumpConfig(path=path, level="module", modules=("layer2", "layer4"), data="tensor", overwrite=True)
with DumpMode(config, model=model):
    model(torch.randn(4, 8)).sum().backward()

rank = open_dump(path).step(0).rank(0)
activations = {name: rank.module(name).outputs.tensor() for name in ("layer2", "layer4")}
for name, activation in activations.items():
    gradient = rank.module(name).gradients[0].tensor()
    print(f"{name}: {list(activation.shape)}, mean {activation.mean():+.4f}, gradient norm {gradient.norm():.4f}")
