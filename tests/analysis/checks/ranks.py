"""Programs on two ranks, healthy and with planted bugs: python -m tests.analysis.checks.ranks all FOLDER records each there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import recording

RANK = int(os.environ.get("RANK", "0"))
Train = Callable[[Path], None]
HEALTHY: dict[str, Train] = {}
PLANTED: dict[str, tuple[str, Train]] = {}  # with the rule that must find it


def healthy(function: Train) -> Train:
    HEALTHY[function.__name__] = function
    return function


def planted(rule: str) -> Callable[[Train], Train]:
    def add(function: Train) -> Train:
        PLANTED[function.__name__] = rule, function
        return function

    return add


def _net(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    )


def _batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def _train(
    path: Path, model: nn.Module, reduce: Callable[[nn.Module], None] = lambda model: None, same_data: bool = False,
    each_draws_its_own: bool = True,
) -> None:  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(RANK if each_draws_its_own else 5)
    with recording(path, model) as dump:
        for number in range(2):
            x, y = _batch(number if same_data else 10 * number + RANK)
            F.cross_entropy(model(x), y).backward()
            reduce(model)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def _ddp(model: nn.Module, **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, **options)


def _mean(model: nn.Module, skip: str = "none") -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not name.startswith(skip):
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2


@healthy
def ddp(path: Path) -> None:
    _train(path, _ddp(_net(dropout=0.2)))


@healthy
def ddp_with_views_of_buckets(path: Path) -> None:
    _train(path, _ddp(_net(), gradient_as_bucket_view=True))


@healthy
def reduced_by_hand(path: Path) -> None:
    _train(path, _net(), _mean)


@healthy
def fully_sharded(path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    model = _net()
    for layer in (model[0], model[3], model):
        fully_shard(layer)
    _train(path, model)


@healthy
def tensor_parallel(path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    _train(path, parallelize_module(model, init_device_mesh("cpu", (2,)), plan), same_data=True)


@healthy
def local_steps_without_reduction(path: Path) -> None:
    _train(path, _net())


@healthy
def accumulated_without_synchronizing(path: Path) -> None:
    model = _ddp(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for number in range(2):
            with model.no_sync():
                x, y = _batch(20 * number + RANK)
                F.cross_entropy(model(x), y).backward()
            x, y = _batch(20 * number + 10 + RANK)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@planted("replicas-apart")
def begun_from_other_seeds(path: Path) -> None:
    _train(path, _net(seed=RANK), _mean)


@planted("replicas-apart")
def one_layer_made_anew_on_a_rank(path: Path) -> None:
    model = _ddp(_net())
    if RANK:
        with torch.no_grad():
            model.module[3].weight.mul_(1.001)
    _train(path, model)


@planted("not-reduced")
def one_layer_left_out(path: Path) -> None:
    _train(path, _net(), lambda model: _mean(model, skip="3."))


@planted("not-reduced")
def layer_that_ddp_ignores(path: Path) -> None:
    model = _net()
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["5.weight", "5.bias"])
    _train(path, _ddp(model))


@planted("same-batch")
def without_a_distributed_sampler(path: Path) -> None:
    _train(path, _ddp(_net()), same_data=True)


@planted("same-batch")
def same_batch_reduced_by_hand(path: Path) -> None:
    _train(path, _net(), _mean, same_data=True)


@planted("same-random")
def same_dropout_on_all_ranks(path: Path) -> None:
    _train(path, _ddp(_net(dropout=0.3)), each_draws_its_own=False)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=RANK, world_size=2)
    for name, record in {**HEALTHY, **{name: record for name, (_, record) in PLANTED.items()}}.items():
        record(folder / name)
        dist.barrier()
    torch.save({}, folder / f"rank{RANK}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[2]))
