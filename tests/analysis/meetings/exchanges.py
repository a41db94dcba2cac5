"""Ranks that exchange tensors in every way, honestly and not: python -m tests.analysis.meetings.exchanges NAME FOLDER.

Every dump is a folder of FOLDER.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode
from tests.distributed.layouts import FSDP_ON_CPU, averages, init, shard

RANK = int(os.environ.get("RANK", "0"))
STAGES = 2


def exchange(path: Path, kind: str = "") -> None:
    """Send what every rank computes to the others; on rank 1 it is `noise`, or `wrong`, comes out `lost`, or as it was (`skipped`)."""
    generator = torch.Generator().manual_seed(3)
    x, w = torch.randn(4, 64, generator=generator) + RANK, torch.randn(64, 8, generator=generator)
    mine = kind if RANK == 1 else ""
    with other_order(mine == "noise"), DumpMode(DumpConfig(path=str(path), data="full")):
        y = (x @ w) * (1.02 if mine == "wrong" else 1.0)
        total = y.clone()
        work = dist.all_reduce(total, async_op=True)
        if mine == "lost":
            _lose(work, total)
        work.wait()
        given = torch.arange(32.0).view(4, 8) + RANK  # exact, so that it is known again whatever rounds
        counts = given.mul(2)
        work = dist.all_reduce(counts, async_op=True)
        if mine == "skipped":
            _lose(work, counts, given * 2)
        work.wait()
        found = [counts, total, *_gathered(y), *_divided(y), _passed_on(y)]
        torch.stack([one.sum() for one in found]).tanh()


@contextmanager
def other_order(on: bool) -> Iterator[None]:
    """Add up products of matrices in another order: an honest kernel, which rounds otherwise."""
    library = torch.library.Library("aten", "IMPL") if on else None
    if library is not None:
        library.impl("mm", lambda a, b: (a.unsqueeze(-1) * b.unsqueeze(0)).flip(1).sum(1), "CPU")
    yield
    if library is not None:
        library._destroy()


def _lose(work: dist.Work, tensor: Tensor, given: Tensor | None = None) -> None:
    """Take an element out of what a collective delivers, or put there what it was `given`, where no op tells of it."""
    while not work.is_completed():
        time.sleep(0.001)
    if given is None:
        tensor.numpy()[1, 3] = 0.0
    else:
        tensor.numpy()[:] = given.numpy()


def _gathered(y: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(y) for _ in range(2)]
    dist.all_gather(parts, y)
    base = torch.empty(8, 8)
    dist.all_gather_into_tensor(base, y)
    rooted = [torch.empty_like(y) for _ in range(2)] if RANK == 0 else None
    dist.gather(y, rooted, dst=0)
    sent = y.clone() if RANK == 1 else torch.empty_like(y)
    dist.broadcast(sent, src=1)
    at_root = y.clone()
    dist.reduce(at_root, dst=0, op=dist.ReduceOp.MAX)
    return [*parts, base, sent]


def _divided(y: Tensor) -> list[Tensor]:
    half, own, swapped = torch.empty(2, 8), torch.empty(2, 8), torch.empty(4, 8)
    dist.reduce_scatter_tensor(half, y.contiguous(), op=dist.ReduceOp.AVG if averages() else dist.ReduceOp.SUM)
    dist.scatter(own, [part.contiguous() for part in y.chunk(2)] if RANK == 1 else None, src=1)
    dist.all_to_all_single(swapped, y, output_split_sizes=None, input_split_sizes=None)
    return [half, own, swapped]


def _passed_on(y: Tensor) -> Tensor:
    if RANK == 1:
        dist.send(y, 0)
        return y
    got = torch.empty_like(y)
    dist.recv(got, 1)
    return got


def objects(path: Path, tag: str) -> None:
    """Exchange Python objects, whose pickles are never twice the same, and train a little."""
    model = nn.Linear(4, 2)
    nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
    with DumpMode(DumpConfig(path=str(path), data="full"), model=model):
        model(torch.ones(3, 4)).sum().backward()
        everyones: list[object] = [None, None]
        dist.all_gather_object(everyones, {"tag": tag, "rank": RANK})
        told = [tag] if RANK == 0 else [None]
        dist.broadcast_object_list(told, src=0)
        assert told == [tag] and everyones[1] == {"tag": tag, "rank": 1}


def pipeline(path: Path, wrong: int | None = None) -> None:
    """One step of 1F1B over two stages; in stage `wrong` the factor of its middle layer is off."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, schedules

    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(8, 8), Scale(1.02 if wrong == n else 1.0), nn.Tanh()) for n in range(STAGES)]
    stage = PipelineStage(stages[RANK], RANK, STAGES, torch.device("cpu"))
    # 1F1B of an older torch waits for one of several messages only, and hangs over gloo, recorded or not.
    kind = Schedule1F1B if hasattr(schedules, "_wait_batch_p2p") else ScheduleGPipe
    schedule = kind(stage, 4, loss_fn=nn.functional.mse_loss)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    with DumpMode(DumpConfig(path=str(path), data="full"), model=stages[RANK]):
        schedule.step(x) if RANK == 0 else schedule.step(target=y)


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def sharded(path: Path, *, noisy: bool = False) -> None:
    """Two steps of Adam on a model that FSDP2 shards; on rank 1 products may be summed in another order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    shard(model[0]), shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(RANK))
    with other_order(noisy and RANK == 1), DumpMode(DumpConfig(path=str(path), data="full"), model=model) as dump:
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def exchanges(folder: Path) -> None:
    init(folder, 2)
    averages()  # before anything is recorded
    for kind in ("", "noise", "wrong", "lost", "skipped"):
        exchange(folder / (kind or "right"), kind)
    objects(folder / "objects.one", "a")
    objects(folder / "objects.two", "a longer one")
    pipeline(folder / "pipeline.one")
    pipeline(folder / "pipeline.two")
    pipeline(folder / "pipeline.wrong", wrong=1)
    if FSDP_ON_CPU:
        sharded(folder / "sharded")
        sharded(folder / "sharded.noisy", noisy=True)


PROGRAMS: dict[str, Callable[[Path], None]] = {"exchanges": exchanges}

if __name__ == "__main__":
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
    torch.save({}, Path(sys.argv[2]) / f"rank{RANK}.pt")
    dist.destroy_process_group()
