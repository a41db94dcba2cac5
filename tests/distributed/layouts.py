"""One small transformer in many parallel layouts, and with a fault on one rank: python -m tests.distributed.layouts NAME FOLDER.

Every dump is a folder of FOLDER. `pairs` and `more_pairs` run on two ranks, `meshes` on four.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode
from tests.analysis.wrong_ops import Wrong, zeroed

BLOCKS, HEADS, WIDTH, HIDDEN, OUT = 1, 8, 16, 12, 5
CLASSES = 4  # of `classify`
KEY_BIAS = True
RANK = int(os.environ.get("RANK", "0"))
FSDP_ON_CPU = hasattr(torch.cpu.Stream, "record_event")  # which FSDP2 of an older torch asks for and does not find


class Block(nn.Module):
    """Attention and a feed-forward layer; heads are as many as the projections have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        if not KEY_BIAS:  # its gradient is zero but for noise, which statistics cannot tell from a difference
            self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(out: int = OUT) -> Model:
    torch.manual_seed(0)
    model = Model()
    if out != OUT:
        model.head = nn.Linear(WIDTH, out)
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(4, 6, WIDTH, generator=generator), torch.randn(4, 6, OUT, generator=generator)


def classify(path: Path, model: nn.Module) -> None:
    """Record a step of SGD with a cross entropy, which ranks of one group compute together."""
    from torch.distributed.tensor.parallel import loss_parallel

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, classes = batch()[0], torch.arange(24) % CLASSES
    with DumpMode(DumpConfig(path=str(path), data="full"), model=model):
        with loss_parallel() if dist.is_initialized() else nullcontext():
            nn.functional.cross_entropy(model(x).flatten(0, 1), classes).backward()
        optimizer.step()


def train(path: Path, model: nn.Module, take: Callable[[Tensor], Tensor] = lambda x: x, **config: Any) -> None:
    """Record a step of SGD; `take` gives this rank's part of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = map(take, batch())
    with DumpMode(DumpConfig(path=str(path), **{"data": "full", **config}), model=model):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()


def train_adam(path: Path, model: nn.Module, take: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    """Record two steps of Adam, which makes of gradients that are rounding alone steps as long as any."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    x, y = map(take, batch())
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for _ in range(2):
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def alone(record: Callable[[Path], None], folder: Path) -> None:
    """Record in a process of its own, of which nothing tells that there are others; before anything else has run here."""
    if RANK == 0:
        process = multiprocessing.get_context("fork").Process(target=_alone, args=(record, folder))
        process.start()
        process.join()
        assert process.exitcode == 0


def _alone(record: Callable[[Path], None], folder: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    record(folder)


def single(folder: Path) -> None:
    train(folder / "single", build())


def singles(folder: Path) -> None:
    """What one process makes of what two ranks do in `pairs`."""
    single(folder)
    train_adam(folder / "single.adam", build())


def more_singles(folder: Path) -> None:
    """Of `more_pairs`."""
    global KEY_BIAS
    singles(folder)
    classify(folder / "single.classes", build(CLASSES))
    KEY_BIAS = False
    train(folder / "single.statistic", build(), data="statistic")


def tensor_parallel(model: nn.Module, mesh: Any, *, classes: bool = False) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Replicate())}
    if classes:
        plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    for n in range(BLOCKS):
        plan |= {f"blocks.{n}.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
        plan |= {f"blocks.{n}.{name}": RowwiseParallel() for name in ("out", "down")}
    return parallelize_module(model, mesh, plan)


def sequence_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {"head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
    for n in range(BLOCKS):
        block = f"blocks.{n}"
        plan |= {f"{block}.{name}": ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")}
        plan |= {
            f"{block}.{name}": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
            for name in ("out", "down")
        }
        given = Shard(1) if n else Replicate()
        plan[block] = PrepareModuleInput(
            input_layouts=(given,), desired_input_layouts=(Shard(1),), use_local_output=False
        )
        plan[f"{block}.norm"] = SequenceParallel()
    return parallelize_module(model, mesh, plan)


def fully_sharded(model: Model, **options: Any) -> nn.Module:
    for block in model.blocks:
        shard(block, **options)
    return shard(model, **options)


def shard(module: nn.Module, **options: Any) -> nn.Module:
    """Shard with FSDP2; where gloo does not average, FSDP2 is to divide what it has summed."""
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(module, **options)
    if not averages():
        sharded.set_force_sum_reduction_for_comms(True)
    return sharded


@lru_cache(1)
def averages() -> bool:
    """Return True if gloo does: of an older torch it returns the sum, and a dump of that is rightly called wrong."""
    found = torch.empty(1)
    dist.reduce_scatter_tensor(found, torch.ones(dist.get_world_size()), op=dist.ReduceOp.AVG)
    return found.item() == 1


def replicated(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def consecutive(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[RANK]


def shuffled(x: Tensor) -> Tensor:
    return x[torch.tensor([2, 0, 3, 1])].chunk(dist.get_world_size())[RANK]


@contextmanager
def wrong_kernel(op: str, n: int) -> Iterator[None]:
    """On rank 1 the n-th call of a CPU kernel returns one element that is zero."""
    left = n

    def kernel(*args: Any, **_: Any) -> Tensor:
        nonlocal left
        result = _KERNELS[op](*args)
        if left == 0:
            result.view(-1)[3] = 0
        left -= 1
        return result

    if RANK != 1:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl(op, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


_KERNELS: dict[str, Callable[..., Tensor]] = {
    "addmm": lambda bias, x, w: torch.mm(x, w) + bias,
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
}


def scaled(model: nn.Module, name: str) -> nn.Module:
    """On rank 1 a parameter, or its shard, is 2 percent off."""
    parameter: Any = dict(model.named_parameters())[name]
    if RANK == 1:
        with torch.no_grad():
            (parameter.to_local() if hasattr(parameter, "to_local") else parameter).mul_(1.02)
    return model


def wrong_wait(n: int) -> Any:
    """On rank 1 the n-th functional collective comes out with an element that is zero."""
    return wrong_on_rank_1(torch.ops._c10d_functional.wait_tensor.default, lambda r: zeroed(r, 7), n)


def wrong_on_rank_1(op: Any, change: Callable[[Tensor], Tensor], n: int = 0) -> Any:
    """On rank 1 the n-th call of an op returns something else."""
    return Wrong(op, n, result=change) if RANK == 1 else nullcontext()


def pairs(folder: Path) -> None:
    """Two ranks: of the honest layouts and of the faults those of which most is said."""
    alone(singles, folder)
    init(folder, 2)
    mesh = pair()
    train(folder / "tp", tensor_parallel(build(), mesh))
    train(folder / "tp.norm", scaled(tensor_parallel(build(), mesh), "blocks.0.norm.weight"))
    with wrong_kernel("gelu", 0):
        train(folder / "tp.gelu", tensor_parallel(build(), mesh))
    with wrong_kernel("addmm", 5):  # the second of the feed-forward layer: a term of a sum
        train(folder / "tp.addmm", tensor_parallel(build(), mesh))
    with wrong_wait(1):
        train(folder / "tp.wait", tensor_parallel(build(), mesh))
    if FSDP_ON_CPU:
        train(folder / "fsdp", fully_sharded(build()), consecutive)
        train(folder / "fsdp.shuffled", fully_sharded(build()), shuffled)
        train(folder / "fsdp.weight", scaled(fully_sharded(build()), "blocks.0.up.weight"), consecutive)


def more_pairs(folder: Path) -> None:
    """Two ranks: the others, which take as long again."""
    global KEY_BIAS

    alone(more_singles, folder)
    init(folder, 2)
    mesh = pair()
    KEY_BIAS = False
    train(folder / "tp.statistic", tensor_parallel(build(), mesh), data="statistic")
    KEY_BIAS = True
    classify(folder / "tp.classes", tensor_parallel(build(CLASSES), mesh, classes=True))
    train(folder / "ddp", replicated(build()), consecutive)
    train_adam(folder / "ddp.adam", replicated(build()), consecutive)
    train(folder / "ddp.unreduced", unreduced_on_rank_1(replicated(build())), consecutive)
    train(folder / "tp.unreduced", unreduced(tensor_parallel(build(), mesh)))
    train(folder / "sp", sequence_parallel(build(), mesh))
    train(folder / "tp.weight", scaled(tensor_parallel(build(), mesh), "blocks.0.up.weight"))
    train(folder / "ddp.norm", scaled(replicated(build()), "module.blocks.0.norm.weight"), consecutive)
    with wrong_on_rank_1(torch.ops.aten.add.Tensor, lambda r: r.index_fill(0, torch.tensor(1), math.nan)):
        train(folder / "tp.nan", tensor_parallel(build(), mesh))
    with wrong_on_rank_1(torch.ops.aten.cat.default, lambda r: zeroed(r, 7)):
        train(folder / "tp.cat", tensor_parallel(build(), mesh))
    if FSDP_ON_CPU:
        train_adam(folder / "fsdp.adam", fully_sharded(build()), consecutive)
        replicas = pair(2, 1, names=("replicas", "shards"))
        train(folder / "hsdp", fully_sharded(build(), mesh=replicas), consecutive)
        with wrong_kernel("gelu", 0):
            train(folder / "fsdp.gelu", fully_sharded(build()), consecutive)


def pair(*shape: int, names: tuple[str, ...] = ("tp",)) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape or (2,), mesh_dim_names=names)


def unreduced_on_rank_1(model: Any) -> nn.Module:
    """Rank 1 takes part in the reduction of gradients, and goes on with its own."""

    def reduced(own: Tensor) -> torch.futures.Future[Tensor]:
        mean = own / 2
        return dist.all_reduce(mean, async_op=True).get_future().then(lambda _: own if RANK else mean)

    model.register_comm_hook(None, lambda _, bucket: reduced(bucket.buffer()))
    return model


def unreduced(model: nn.Module) -> nn.Module:
    """The feed-forward layer leaves out its all-reduce, on all ranks."""
    from torch.distributed.tensor import Partial

    down: Any = model.get_submodule("blocks.0.down")
    down._forward_hooks.clear()
    down.register_forward_hook(lambda module, args, output: output.to_local(grad_placements=[Partial()]))
    return model


def meshes(folder: Path) -> None:
    """Four ranks: sharded and replicated, and both tensor parallel and sharded."""
    from torch.distributed.device_mesh import init_device_mesh

    alone(single, folder)
    init(folder, 4)
    train(folder / "tp4", tensor_parallel(build(), init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))))
    if not FSDP_ON_CPU:
        return
    train(
        folder / "hsdp",
        fully_sharded(build(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))),
        consecutive,
    )
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    half = both["dp"].get_local_rank()
    model = fully_sharded(tensor_parallel(build(), both["tp"]), mesh=both["dp"])
    train(folder / "fsdp_tp", model, lambda x: x.chunk(2)[half])
    model = fully_sharded(sequence_parallel(build(), both["tp"]), mesh=both["dp"])
    train(folder / "fsdp_sp", model, lambda x: x.chunk(2)[half])


def init(folder: Path, ranks: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=RANK, world_size=ranks)


PROGRAMS: dict[str, Callable[[Path], None]] = {"pairs": pairs, "more_pairs": more_pairs, "meshes": meshes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
    torch.save({}, Path(sys.argv[2]) / f"rank{RANK}.pt")
    dist.destroy_process_group()
