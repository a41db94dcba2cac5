"""Programs on two ranks, healthy and with planted bugs; `ranks_models` has more, and records each."""

from __future__ import annotations

import os
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


def _adjusted(model: nn.Module, path: Path, adjust: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
    """Train data-parallel, and adjust the model or its optimizer after each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with recording(path, model) as dump:
        for number in range(2):
            x, y = _batch(10 * number + RANK)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            adjust(model, optimizer)
            dump.step()


@planted("replicas-apart")
def learning_rate_of_its_own_on_each_rank(path: Path) -> None:
    def adjust(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + RANK)

    model = _ddp(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with recording(path, model) as dump:
        for number in range(2):
            adjust(model, optimizer)
            x, y = _batch(10 * number + RANK)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@planted("replicas-apart")
def weights_clamped_on_the_first_rank_only(path: Path) -> None:
    def adjust(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if RANK == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)

    _adjusted(_ddp(_net()), path, adjust)


@planted("replicas-apart")
def noise_on_weights_of_each_rank_s_own(path: Path) -> None:
    def adjust(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            generator = torch.Generator().manual_seed(RANK)
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))

    _adjusted(_ddp(_net()), path, adjust)


@planted("replicas-apart")
def head_made_anew_after_the_replicas_were_synchronized(path: Path) -> None:
    model = _ddp(_net())
    torch.manual_seed(100 + RANK)
    model.module[5].reset_parameters()
    _train(path, model)


@planted("replicas-apart")
def checkpoint_read_by_the_first_rank_only(path: Path) -> None:
    model = _net()
    if RANK == 0:
        model.load_state_dict(_net(seed=3).state_dict())
    _train(path, model, _mean)


@planted("not-reduced")
def head_added_after_ddp_was_made(path: Path) -> None:
    model = _ddp(_net())
    model.module.append(nn.Linear(3, 3))
    for parameter in model.module[6].parameters():
        dist.broadcast(parameter.data, 0)
    _train(path, model)


@planted("not-reduced")
def vectors_left_out_of_the_reduction(path: Path) -> None:
    def reduce(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.dim() > 1:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2  # type: ignore[operator]

    _train(path, _net(), reduce)


@planted("not-reduced")
def copy_of_a_gradient_reduced(path: Path) -> None:
    def reduce(model: nn.Module) -> None:
        _mean(model, skip="0.")
        for parameter in model[0].parameters():  # type: ignore[index]
            dist.all_reduce(parameter.grad.clone())

    _train(path, _net(), reduce)


@planted("not-reduced")
def list_of_parameters_made_before_a_layer_was_released(path: Path) -> None:
    model = _net()
    model[0].requires_grad_(False)
    listed = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model[0].requires_grad_(True)

    def reduce(model: nn.Module) -> None:
        flat = torch.cat([parameter.grad.flatten() for parameter in listed])
        dist.all_reduce(flat)
        for parameter, part in zip(listed, flat.split([p.numel() for p in listed]), strict=True):
            parameter.grad.copy_(part.view_as(parameter) / 2)

    _train(path, model, reduce)


@planted("same-batch")
def sampler_made_for_the_first_rank_everywhere(path: Path) -> None:
    data = torch.utils.data.TensorDataset(*_batch(0))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    _loaded(path, torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler))


@planted("same-batch")
def rows_by_a_rank_that_is_always_zero(path: Path) -> None:
    x, y = _batch(0)
    local_rank = int(os.environ.get("SLURM_LOCALID", "0"))
    data = torch.utils.data.TensorDataset(x[local_rank::2], y[local_rank::2])
    _loaded(path, torch.utils.data.DataLoader(data, batch_size=2))


@planted("same-batch")
def shuffle_seeded_alike_without_a_sampler(path: Path) -> None:
    data = torch.utils.data.TensorDataset(*_batch(0))
    generator = torch.Generator().manual_seed(42)
    _loaded(path, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=generator))


def _loaded(path: Path, loader: Any) -> None:
    model = _ddp(_net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with recording(path, model) as dump:
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


class _Drawing(nn.Module):
    """A net that draws random numbers in its forward."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.draw = _net(), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.draw(x))


@planted("same-random")
def same_noise_on_inputs(path: Path) -> None:
    _train(path, _ddp(_Drawing(lambda x: x + 0.1 * torch.randn_like(x))), each_draws_its_own=False)


@planted("same-random")
def same_inputs_masked(path: Path) -> None:
    _train(path, _ddp(_Drawing(lambda x: x * (torch.rand(x.shape) > 0.2))), each_draws_its_own=False)


@planted("same-random")
def same_layers_skipped(path: Path) -> None:
    _train(path, _ddp(_Drawing(lambda x: x + torch.bernoulli(torch.full((8, 1), 0.5)) * x)), each_draws_its_own=False)


@planted("same-random")
def same_dropout_reduced_by_hand(path: Path) -> None:
    _train(path, _net(dropout=0.3), _mean, each_draws_its_own=False)


# -- gradients that are reduced twice -----------------------------------------------------------------------------------


@planted("gradient-reduced-twice")
def ddp_and_by_hand(path: Path) -> None:
    _train(path, _ddp(_net()), lambda model: _sum(model))


def _sum(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


@planted("gradient-reduced-twice")
def by_a_helper_and_by_the_loop(path: Path) -> None:
    def reduce(model: nn.Module) -> None:
        _mean(model)
        _mean(model)

    _train(path, _net(), reduce)


@planted("gradient-reduced-twice")
def by_a_hook_and_by_the_loop(path: Path) -> None:
    model = _net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    _train(path, model, _mean)


@planted("gradient-reduced-twice")
def after_each_accumulated_batch(path: Path) -> None:
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with recording(path, model) as dump:
        for number in range(2):
            for part in range(2):
                x, y = _batch(20 * number + 10 * part + RANK)
                F.cross_entropy(model(x), y).backward()
                _sum(model)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@planted("gradient-reduced-twice")
def flattened_after_ddp(path: Path) -> None:
    def reduce(model: nn.Module) -> None:
        parameters = list(model.parameters())
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, (flat / 2).split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))

    _train(path, _ddp(_net()), reduce)


@planted("gradient-reduced-twice")
def in_the_hook_of_the_optimizer_after_ddp(path: Path) -> None:
    model = _ddp(_net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: _sum(model))
    with recording(path, model) as dump:
        for number in range(2):
            x, y = _batch(10 * number + RANK)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


# -- healthy: reductions that come after others -------------------------------------------------------------------------


@healthy
def norm_of_gradients_over_ranks(path: Path) -> None:
    def reduce(model: nn.Module) -> None:
        _mean(model)
        norms = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()])
        dist.all_reduce(norms)
        for parameter in model.parameters():
            parameter.grad.mul_(1 / norms.sum().sqrt().clamp(min=1.0))
        found = torch.zeros(2)
        found[0] = norms.sum()
        dist.all_reduce(found, dist.ReduceOp.MAX)

    _train(path, _net(), reduce)


@healthy
def batch_norm_over_ranks(path: Path) -> None:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            total = x.sum(0)
            dist.all_reduce(total)
            return x - total / (2 * len(x))

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            total = grad.sum(0)
            dist.all_reduce(total)
            return grad - total / (2 * len(grad))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(Norm.apply(self.one(x)).relu())

    torch.manual_seed(0)
    _train(path, _ddp(Net()))


@healthy
def low_rank_gradients(path: Path) -> None:
    def reduce(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.dim() < 2:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2  # type: ignore[operator]
                continue
            right = torch.ones(parameter.shape[1], 2)
            left = parameter.grad @ right
            dist.all_reduce(left)
            left = torch.linalg.qr(left).Q
            right = parameter.grad.T @ left
            dist.all_reduce(right)
            parameter.grad.copy_(left @ right.T / 2)

    _train(path, _net(), reduce)


@healthy
def weights_averaged_beside_ddp(path: Path) -> None:
    def adjust(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter /= 2

    _adjusted(_ddp(_net()), path, adjust)
