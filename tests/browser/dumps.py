"""Real dumps of every kind that a report may be asked for: python -m tests.browser.dumps FOLDER records them all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from aten_dump import DumpConfig, DumpMode
from tests.analysis.wrong_ops import Wrong
from tests.models import ResNet


def record(path: Path, steps: int = 1, *, wrong: Any = None, data: str = "full", seed: int = 0, **config: Any) -> Path:
    """Record training steps of a small ResNet; `wrong` is entered around them."""
    torch.manual_seed(seed)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    with wrong or nullcontext(), DumpMode(DumpConfig(path=path, data=data, **config), model=model) as dump:
        for _ in range(steps):
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def trained(folder: Path) -> Path:
    return record(folder / "trained", 3)


def scaled_bn(folder: Path) -> Path:
    """The third batch norm is 2 percent off."""
    batch_norm = torch.ops.aten.native_batch_norm.default
    return record(folder / "target", wrong=Wrong(batch_norm, 2, result=lambda r: (r[0] * 1.02, *r[1:])))


def baseline(folder: Path) -> Path:
    return record(folder / "baseline")


def inference(folder: Path) -> Path:
    path = folder / "inference"
    model = ResNet().eval()
    with torch.inference_mode(), DumpMode(DumpConfig(path=path, data="full"), model=model):
        model(torch.randn(2, 3, 16, 16))
    return path


def not_a_number(folder: Path) -> Path:
    """A loss that takes the logarithm of a probability of zero."""
    path = folder / "nan"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with DumpMode(DumpConfig(path=path, data="full"), model=model):
        probability = (model(torch.randn(6, 8)) * 200).softmax(-1)
        (probability * probability.log()).sum().backward()
    return path


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(lambda y: self.first(y).tanh().mul(2), x, use_reentrant=False))


def recomputed(folder: Path) -> Path:
    path = folder / "recompute"
    model = Checkpointed()
    with DumpMode(DumpConfig(path=path, data="full"), model=model):
        model(torch.randn(4, 8, requires_grad=True)).sum().backward()
    return path


def interrupted(folder: Path) -> Path:
    """A dump whose index and shard end in the middle, as after ``kill -9``."""
    path = record(folder / "interrupted")
    (rank,) = path.glob("step*/rank*")
    index = rank / "index.msgpack"
    index.write_bytes(index.read_bytes()[: index.stat().st_size * 2 // 3])
    (shard,) = rank.glob("shard-*")
    shard.rename(shard.with_name(shard.name + ".partial"))
    return path


def structure(folder: Path) -> Path:
    return record(folder / "structure", data="structure")


def empty_step(folder: Path) -> Path:
    path = folder / "empty"
    with DumpMode(DumpConfig(path=path)) as dump:
        dump.step()
    return path


def scaled_loss(folder: Path) -> Path:
    """Two steps under a gradient scaler whose scale overflows float16 in the first."""
    path = folder / "scaler"
    torch.manual_seed(0)
    model = nn.Linear(64, 64).half()
    master = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(master, lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        for _ in range(2):
            loss = model(torch.randn(8, 64, dtype=torch.float16)).float().square().mean()
            scaler.scale(loss).backward()
            for one, parameter in zip(master, model.parameters(), strict=True):
                one.grad, parameter.grad = parameter.grad.float(), None
            scaler.step(optimizer)
            scaler.update()
            dump.step()
    return path


class Masked(nn.Module):
    """A causal mask, as attention has it."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.projection(x) @ x.mT
        return scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1) @ x


def diverging(folder: Path) -> Path:
    """Five steps with a mask in each; a loss that is divided by zero in step 3."""
    path = folder / "diverging"
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        for step in range(5):
            x = torch.randn(6, 8)
            loss = (model(x) - x).square().mean()
            (loss / (0.0 if step == 3 else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


RECORDERS: dict[str, Callable[[Path], Path]] = {
    "trained": trained, "target": scaled_bn, "baseline": baseline, "inference": inference, "nan": not_a_number,
    "recompute": recomputed, "interrupted": interrupted, "structure": structure, "empty": empty_step, "scaler": scaled_loss,
    "diverging": diverging,
}  # fmt: skip


def record_all(folder: Path) -> Path:
    """Record every dump that needs one process."""
    folder.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, recorder in RECORDERS.items():
            assert recorder(folder).name == name
    finally:
        torch.set_num_threads(threads)
    return folder


if __name__ == "__main__":
    record_all(Path(sys.argv[1]))
