"""Programs of two processes on the simulated device: torchrun starts ``python -m tests.npu.trust.two_ranks NAME``."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from tests.npu.simulator import device


def collectives(rank: int) -> None:
    """Every collective that data and tensor parallel programs use."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        mine = torch.arange(6, device="npu").to(dtype) + 10 * rank
        both = [torch.arange(6).to(dtype) + 10 * r for r in range(2)]
        summed = mine.clone()
        dist.all_reduce(summed)
        assert torch.equal(summed.cpu(), both[0] + both[1])
        most = mine.clone()
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        assert torch.equal(most.cpu(), both[1])
        gathered = torch.empty(12, dtype=dtype, device="npu")
        dist.all_gather_into_tensor(gathered, mine)
        assert torch.equal(gathered.cpu(), torch.cat(both))
        part = torch.empty(3, dtype=dtype, device="npu")
        dist.reduce_scatter_tensor(part, mine)
        assert torch.equal(part.cpu(), (both[0] + both[1])[3 * rank : 3 * rank + 3])
        sent = mine.clone()
        dist.broadcast(sent, src=1)
        assert torch.equal(sent.cpu(), both[1])
    swapped = torch.empty(2, device="npu")
    dist.all_to_all_single(swapped, torch.tensor([10.0 * rank, 10.0 * rank + 1], device="npu"))
    assert swapped.tolist() == [float(rank), 10.0 + rank]


def point_to_point(rank: int) -> None:
    """Send and receive, one after the other and both at once."""
    x = torch.full((4,), float(rank), device="npu")
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    assert x.tolist() == [0.0] * 4
    mine, theirs = torch.full((4,), float(rank), device="npu"), torch.empty(4, device="npu")
    ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert theirs.tolist() == [float(1 - rank)] * 4


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def _alone(batches: torch.Tensor) -> list[torch.Tensor]:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(batches.flatten(0, 1)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def _train(net: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(batch.npu()).square().mean().backward()
        optimizer.step()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in net.parameters()]


def _compare(found: list[torch.Tensor], batches: torch.Tensor) -> None:
    for want, have in zip(_alone(batches), found, strict=True):
        torch.testing.assert_close(have.cpu(), want, rtol=1e-5, atol=1e-6)


def _batches() -> torch.Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))


def data_parallel(rank: int) -> None:
    net = nn.parallel.DistributedDataParallel(_net().npu())
    _compare(_train(net, _batches()[rank]), _batches())


def fully_sharded(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, mesh = _net().npu(), init_device_mesh("npu", (2,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    _compare(_train(net, _batches()[rank]), _batches())


def tensor_parallel(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("npu", (2,))
    net = parallelize_module(_net().npu(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    _compare(_train(net, _batches().flatten(0, 1)), _batches())


PROGRAMS: dict[str, Callable[[int], None]] = {
    f.__name__: f for f in (collectives, point_to_point, data_parallel, fully_sharded, tensor_parallel)
}


def main(name: str) -> None:
    device.start()
    dist.init_process_group("hccl")
    torch.npu.set_device(0)
    PROGRAMS[name](dist.get_rank())
    torch.npu.synchronize()
    dist.destroy_process_group()
    print(f"{name}: fine")


if __name__ == "__main__":
    main(sys.argv[1])
