"""Programs of two ranks that are watched."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from aten_dump import Watch


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def train(folder: Path, name: str, model: nn.Module, **options: Any) -> dict[str, Any]:
    rank = dist.get_rank()
    options = {"record": folder / f"dump-{name}", "modules": "*", **options}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Watch(every=2, to=folder / f"{name}.jsonl", model=model, **options) as watch:
        for step in range(6):
            torch.manual_seed(10 * step + rank)
            loss = model(torch.randn(4, 6)).square().mean()
            (loss * (float("nan") if step == 2 and rank == 1 else 1)).backward()
            for parameter in model.parameters():
                local = getattr(parameter.grad, "_local_tensor", parameter.grad)
                local.nan_to_num_()
            optimizer.step()
            optimizer.zero_grad()
    return {"numbers": watch.numbers, "alerts": [alert.as_dict() for alert in watch.alerts]}


def together(folder: Path) -> dict[str, Any]:
    sharded = net()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    return {
        "ddp": train(folder, "ddp", DistributedDataParallel(net())),
        "fsdp": train(folder, "fsdp", sharded, modules=()),
        "each": train(folder, "each", DistributedDataParallel(net()), ranks="each", record=None),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=ranks[0], world_size=ranks[1])
    found = globals()[sys.argv[1]](folder)
    torch.save(found, folder / f"rank{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
