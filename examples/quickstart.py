"""Record a training loop and read one call back: the shortest useful program."""

import sys
import tempfile

import torch

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="aten-dump-") + "/dump"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())

with DumpMode(DumpConfig(path=path, steps="1", data="full"), model=model) as dump:
    for _ in range(3):
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dump.step()  # ends a step; only step 1 is recorded

rank = open_dump(path).step(1).rank(0)
print(f"{len(rank.calls)} calls in step 1; the forward ones:\n")
for call in rank.calls.filter(kind="aten", phase="forward"):
    shapes = ", ".join(f"{value.dtype_name}{list(value.shape)}" for _, value in call.output_values())
    print(f"{call.name:32} {call.module or '-':4} -> {shapes:20} line {call.source.line}")
