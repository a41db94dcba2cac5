"""How the dumps under ``tests/golden/v1`` were made, by the first code that wrote format version 1.

They are never made again: they stand for dumps that people have. ``python -m tests.golden.record FOLDER`` makes others
like them, with what a reader must find in them in ``expected.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aten_dump import DumpConfig, DumpMode, open_dump


class Small(nn.Module):
    """A bit of everything: a shared weight, an in-place op, dropout, a recomputed part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.drop = nn.Dropout(0.25)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        x = x + checkpoint(lambda y: self.down(self.up(y).relu_()), x, use_reentrant=False)
        return self.drop(x) @ self.embed.weight.t()


def odd_tensors() -> None:
    """Values that are no plain strided float32."""
    eye = torch.eye(3).to_sparse()
    eye.mul(2)
    torch.eye(3).to_sparse_csr().mul(2)
    torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.quint8).dequantize()
    torch.tensor([1 + 2j, 3 - 4j]).conj().mul(2)
    torch.arange(6.0).reshape(2, 3).t().bfloat16().exp()
    torch.zeros(1).expand(4).add(1)
    torch.empty(3)
    torch.randn(3, device="meta").add(1)
    torch.tensor([], dtype=torch.int64).sum()
    torch.full((2,), float("nan")).add(float("inf"))
    torch.ones(2, dtype=torch.float8_e4m3fn).to(torch.float32)


def train(path: Path, steps: int, **config: Any) -> None:
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with DumpMode(DumpConfig(path=path, **config), model=model) as dump:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()
            optimizer.step()
            if config.get("data") == "full":
                odd_tensors()
            dump.step()


def killed(path: Path) -> None:
    """A dump whose process was killed in its second step."""
    if os.fork() == 0:
        torch.manual_seed(0)
        model = Small()
        with DumpMode(DumpConfig(path=path, data="tensor", shard_bytes=1 << 16), model=model) as dump:
            model(torch.tensor([[1, 2]])).sum().backward()
            dump.step()
            model(torch.tensor([[3, 4]])).sum().backward()
            import time

            time.sleep(1)  # the writer's thread writes what waits
            os.kill(os.getpid(), signal.SIGKILL)
    os.wait()


def facts(path: Path) -> dict[str, Any]:
    """What a reader must find: every call, every statistic and every tensor's bytes, as texts."""
    found: dict[str, Any] = {}
    for rank in open_dump(path).all_ranks():
        found[f"step{rank.step}/rank{rank.rank}"] = {
            "complete": rank.complete,
            "calls": {
                call.name: [call.op, call.kind, call.module, call.forward.name if call.forward else None, call.mutated]
                for call in rank.calls
            },
            "values": {str(value.id): _facts(value) for value in rank.values},
            "gradients": {name: value.id for name, value in rank.gradients.items()},
            "saved": len(rank.tables.saved),
        }
    return json.loads(json.dumps(found))


def _facts(value: Any) -> list[Any]:
    stats = None if value.stats is None else {name: repr(number) for name, number in value.stats.items()}
    shape = [value.dtype_name, list(value.shape), list(value.stride), value.device_name, value.layout_name]
    return [*shape, stats, value.hash, repr(value.tensor().tolist()) if _is_plain(value) else value.has_data]


def _is_plain(value: Any) -> bool:
    return value.has_data and value.layout_name == "strided" and "quantized" not in value.extra


def main(folder: Path) -> None:
    killed(folder / "killed")
    train(folder / "full", 1, data="full")
    train(folder / "statistic", 2, data="statistic", level="aten", stacks=False)
    train(folder / "hash", 1, data="hash", hash="md5", io="output", ops=("aten::addmm", "aten::mul"))
    train(folder / "sample", 1, data="tensor", sample=3, level="module")
    for dump in sorted(path for path in folder.iterdir() if path.is_dir()):
        (dump / "expected.json").write_text(json.dumps(facts(dump), indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
