"""The gradient of any intermediate tensor, without retain_grad: saved under a name, or found in the recording.

Usage: python examples/gradient_of_any_tensor.py [DUMP]
"""

import sys

import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else "gradient-dump"
torch.manual_seed(0)
first, second = nn.Linear(8, 16), nn.Linear(16, 1)
x = torch.randn(4, 8)

with DumpMode(DumpConfig(path=path, data="tensor", overwrite=True), model=[first, second]) as dump:
    hidden = torch.nn.functional.gelu(first(x))
    dump.save("hidden", hidden)
    second(hidden).square().mean().backward()

rank = open_dump(path).step(0).rank(0)
saved = rank.saved["hidden"]
print("saved under a name:", saved.value, "with gradient", saved.gradient)
assert saved.gradient is not None

# What nobody had thought of saving is there too: the backward of each call has the gradients of its results.
gelu = rank["Functional.gelu.0.forward"]
print("found afterwards:  ", gelu.backward[0].name, gelu.backward[0].inputs[0][0])
assert torch.equal(saved.gradient.tensor(), rank.tensor("Functional.gelu.0.backward.input.0"))
