"""A forward pass through several models, seen as by hooks on all of them, with none on any.

Usage: python examples/several_models.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "models-dump"
torch.manual_seed(0)
models = {"generator": nn.Sequential(nn.Linear(4, 8), nn.ReLU()), "critic": nn.Sequential(nn.Linear(8, 1))}
dump = DumpMode(DumpConfig(path=path, data="statistic", overwrite=True), model=models)


@dump  # each call is a step
def train_step(noise):
    score = models["critic"](models["generator"](noise))
    score.mean().backward()


for _ in range(2):
    train_step(torch.randn(2, 4))
dump.close()

for step in open_dump(path).steps:
    rank = open_dump(path).step(step).rank(0)
    for call in rank.calls.filter(kind="module", phase="forward"):
        print(
            f"step {step}: {call.module:<12} mean {call.outputs.stats.mean:+.4f}, backward {len(call.backward)} calls"
        )
