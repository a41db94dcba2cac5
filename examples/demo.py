"""The main job: record two training steps of a small GPT-2 and print what was recorded."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

from aten_dump import DumpConfig, DumpMode, open_dump

path = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="aten-dump-") + "/dump")

logging.set_verbosity_error()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=2, n_head=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 1000, (4, 64))

print("Training a small GPT-2 for three steps, recording steps 1 and 2 ...")
with DumpMode(DumpConfig(path=path, steps="1-2", data="full", overwrite=True), model=model) as dump:
    for step in range(3):
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dump.step()
        print(f"  step {step}: loss {loss.item():.6f}")

opened = open_dump(path)
print("\nRecorded, calls by kind:")
for rank in opened.all_ranks():
    kinds = Counter(f"{call.kind} {call.phase}" for call in rank.calls)
    print(f"  step {rank.step}: {len(rank.calls)} calls:", ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))

rank = opened.step(1).rank(0)
print("\nA piece of the tree, the feed-forward layer of the first block:")
forward = rank.calls.filter(op="Torch.addmm", kind="api", phase="forward", module="transformer.h.0.mlp.c_fc")[0]
pending = [(forward.parent, 1)]
while pending:
    call, depth = pending.pop()
    made = ", ".join(f"{value.dtype_name}{list(value.shape)}" for _, value in call.output_values())
    print(f"{'  ' * depth}{call.name} -> {made}")
    pending += [(child, depth + 1) for child in reversed(call.children)]

backward = next(call for call in forward.backward if call.kind == "api")
(_, output), *_ = forward.output_values()
print(f"\nOne call:      {forward.name} in {forward.module}")
print("its output:   ", ", ".join(f"{name} {number:.6g}" for name, number in output.stats.items()))
print(f"its backward:  {backward.name}, made of {', '.join(call.name for call in forward.children[0].backward)}")
print(f"weight grad:   {backward.name}.output.2, l2norm {backward.outputs[2].stats.l2norm:.6f}")
print(f"saved for backward in this step: {rank.saved_for_backward().nbytes:,} bytes")

print("\nFiles:")
for file in sorted(path.rglob("*.*")):
    print(f"  {file.stat().st_size:12,} bytes  {file}")

print(f"\nNext:  aten-dump ls '{path}', show '{path}' {forward.name}, stats '{path}', saved '{path}', verify '{path}'")
