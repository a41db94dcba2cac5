"""A story: the loss of a GPT-2 is a little off on another device, and one command says which kernel is wrong.

The other device is played by a dispatch mode: its matrix product forgets the last column where the inner size is no
multiple of 64, as a kernel does whose last tile is cut short.
"""

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, logging

from aten_dump import DumpConfig, DumpMode, compare

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="aten-dump-"))
logging.set_verbosity_error()


class OtherDevice(TorchDispatchMode):
    """Runs all ops rightly but one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.addmm.default and args[1].shape[1] % 64:
            bias, left, right = args
            return func(bias, left[:, :-1], right[:-1])
        return func(*args, **(kwargs or {}))


def train(path, device):
    """Record one training step."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=200, n_positions=32, n_embd=64, n_layer=2, n_head=2, n_inner=160)
    model = GPT2LMHeadModel(config).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(0, 200, (4, 32))
    with device, DumpMode(DumpConfig(path=path, data="full", overwrite=True), model=model) as dump:
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        dump.step()
    return loss.item()


print(f"here:             loss {train(folder / 'here', nullcontext()):.6f}")
print(f"the other device: loss {train(folder / 'other', OtherDevice()):.6f}")
found = compare(folder / "other", folder / "here")
assert found.cause is not None
assert found.cause.row.place.module.endswith("mlp.c_proj")
print(f"aten-dump compare {folder / 'other'} {folder / 'here'}")
print(found.answer())
