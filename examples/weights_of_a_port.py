"""Which weight of a port became which: QKV split, Conv1D turned to Linear, rounded, and one layer that was forgotten.

Usage: python examples/weights_of_a_port.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import aten_dump

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "weights-of-a-port")
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)

original = {"wte.weight": torch.randn(100, 64)}
for layer in range(4):
    original[f"h.{layer}.attn.c_attn.weight"] = torch.randn(64, 192)  # Conv1D: inputs first, QKV in one
    original[f"h.{layer}.attn.c_attn.bias"] = torch.randn(192)
    original[f"h.{layer}.mlp.c_fc.weight"] = torch.randn(64, 256)

port = {"embed.weight": torch.cat([original["wte.weight"], torch.zeros(28, 64)])}  # padded to a multiple of 128
for layer in range(4):
    attn = f"h.{layer}.attn.c_attn"
    for part, weight, bias in zip(
        "qkv", original[f"{attn}.weight"].chunk(3, 1), original[f"{attn}.bias"].chunk(3), strict=True
    ):
        port[f"layers.{layer}.{part}_proj.weight"] = weight.T
        port[f"layers.{layer}.{part}_proj.bias"] = bias
    fc = original[f"h.{layer}.mlp.c_fc.weight"]
    port[f"layers.{layer}.up.weight"] = fc.view(256, 64) if layer == 2 else fc.T  # the bug: a view is no transposition

save_file(original, folder / "original.safetensors")
save_file({name: tensor.bfloat16().contiguous() for name, tensor in port.items()}, folder / "port.safetensors")

found = aten_dump.weights(folder / "port.safetensors", folder / "original.safetensors")
print(found.answer())
print([weight.target for weight in found if not weight.accounted])
