"""A trainer and an engine give other log-probabilities for the same tokens: where they part, and what of it is what.

Usage: python examples/trainer_and_engine.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare_at

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "trainer-and-engine")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 50)

    def forward(self, ids, engine=False):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        if not engine:
            return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        scores = q @ k.mT * 32**-0.5  # the engine's own attention
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return self.head(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v)


def log_probabilities(logits, ids, temperature=1.0):
    of_all = (logits[:, :-1] / temperature).float().log_softmax(-1)
    return of_all.gather(-1, ids[:, 1:, None]).squeeze(-1)


torch.manual_seed(0)
model, ids = Model(), torch.randint(50, (2, 16))

with DumpMode(DumpConfig(path=folder / "trainer", data="tensor", overwrite=True), model=model) as dump:
    logp = log_probabilities(model(ids), ids)
    dump.save("logp", logp)
    logp.mean().backward()

model.to(torch.bfloat16)
with torch.no_grad(), DumpMode(DumpConfig(path=folder / "engine", data="tensor", overwrite=True), model=model) as dump:
    scope = dump.scope("request-7")  # a serving loop: each request under its id
    with scope:
        dump.save("rollout", log_probabilities(model(ids, engine=True), ids, temperature=0.9))  # the bug

print(compare_at(folder / "engine", folder / "trainer", "request-7/rollout=logp").answer())
