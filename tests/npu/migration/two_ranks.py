"""A data-parallel training step of two processes, on the CPU or on the simulated device.

torchrun starts ``python -m tests.npu.migration.two_ranks DEVICE PATH [SKIPPED]``: the all-reduce of that bucket brings
nothing of the other rank.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

from aten_dump import DumpConfig, DumpMode

BACKENDS = {"cpu": "gloo", "npu": "hccl"}


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))


def train(device: str, path: str, skipped: int | None) -> None:
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(make_net().to(device), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = torch.randn(2, 2, 8, 16, generator=torch.Generator().manual_seed(1)).to(device)
    for step in range(2):  # DDP orders its buckets anew after the first
        if step == 1:
            dump = DumpMode(DumpConfig(path=path, data="full"), model=net)
            dump.start()
            if skipped is not None:
                from tests.npu.simulator.device import skip_all_reduce

                skip_all_reduce(skipped)
        optimizer.zero_grad()
        net(batches[step, rank]).square().mean().backward()
        optimizer.step()
    dump.close()


def main(device: str, path: str, skipped: str = "") -> None:
    if device == "npu":
        from tests.npu.simulator import device as simulated

        simulated.start()
    dist.init_process_group(BACKENDS[device])
    if device == "npu":
        torch.npu.set_device(0)
    train(device, path, int(skipped) if skipped else None)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
