"""The loss scale over the steps of a run under GradScaler: what it was, and which steps were skipped.

Usage: python examples/loss_scale_history.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "scale-dump"
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)

with DumpMode(DumpConfig(path=path, data="statistic", overwrite=True), model=model) as dump:
    for step in range(5):
        loss = model(torch.randn(4, 8)).square().mean()
        scaler.scale(loss * float("inf") if step == 2 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        dump.step()

opened = open_dump(path)
for step in opened.steps:
    for scale in opened.step(step).rank(0).loss_scales:
        what = "skipped, gradients were not finite" if scale.found_inf else "done"
        print(f"step {step}: loss scale {scale.scale:,.0f}, {what}; next {scale.next_scale:,.0f}")
