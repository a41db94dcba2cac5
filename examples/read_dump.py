"""Ask a dump questions: which outputs grew, who reads a value, what keeps memory alive for backward."""

import sys
import tempfile

import torch

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="aten-dump-") + "/dump"

torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=128, batch_first=True)
with DumpMode(DumpConfig(path=path, data="statistic"), model=model) as dump:
    for _ in range(2):
        model(torch.randn(2, 10, 32)).sum().backward()
        dump.step()

opened = open_dump(path)
print(f"steps {list(opened.steps)}, ranks {list(opened.ranks)}")
rank = opened.step(1).rank(0)

print("\nlargest outputs of the forward pass, by absolute value:")
outputs = [
    (max(abs(value.stats.min), abs(value.stats.max)), call, value)
    for call in rank.calls.filter(kind="aten", phase="forward")
    for _, value in call.output_values()
    if value.stats is not None and value.stats.min is not None
]
for size, call, value in sorted(outputs, key=lambda row: -row[0])[:5]:
    print(f"  {size:10.4f}  {call.name:36} {list(value.shape)}  {call.module}")

norm = rank.calls.filter(op="aten::native_layer_norm", phase="forward")[0]
_, result = norm.output_values()[0]
print(f"\n{norm.name} output.0 is read by:")
for call, slot in result.consumers:
    print(f"  {call.name}.{slot}")

saved = rank.saved_for_backward()
print(f"\nkept alive for backward: {saved.nbytes:,} bytes, {saved.outside_nbytes:,} of them from outside; by call:")
for call, nbytes in sorted(saved.by_call().items(), key=lambda row: -row[1])[:5]:
    print(f"  {nbytes:10,} bytes  {call.name:36} {call.module}")
