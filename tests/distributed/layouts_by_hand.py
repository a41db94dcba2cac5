"""A small GPT in parallel layouts that are written by hand: python -m tests.distributed.layouts_by_hand NAME FOLDER.

Every dump is a folder of FOLDER, two steps of Adam. `by_hand` runs on two ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode
from tests.distributed.layouts import FSDP_ON_CPU, RANK, alone, consecutive, init, shard

WIDTH, HEADS, WORDS, LENGTH, BATCH, RANKS = 16, 4, 31, 6, 4, 2


class Attention(nn.Module):
    """Queries, keys and values of one layer: of its bias a third has a gradient that is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(attended(self.qkv(x), HEADS))


def attended(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.second_norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.words(text))))


class ToRanks(torch.autograd.Function):
    """Every rank goes on with all of it: what comes back is a term of the gradient."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumOfRanks(torch.autograd.Function):
    """Every rank has a term."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class ParallelRows(nn.Module):
    """A linear layer of whose input each rank has some features; the bias is added to the sum, or by mistake to terms."""

    def __init__(self, whole: nn.Linear, fault: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(RANKS, 1)[RANK].clone())
        self.bias = nn.Parameter(whole.bias.detach().clone())
        self._fault = fault

    def forward(self, x: Tensor) -> Tensor:
        term = F.linear(x, self.weight)
        if self._fault == "unreduced":
            return term + self.bias
        return SumOfRanks.apply(term + self.bias) if self._fault == "bias" else SumOfRanks.apply(term) + self.bias


def columns(whole: nn.Linear, parts: int = 1) -> nn.Linear:
    """This rank's part of the features of each of `parts` blocks that a layer makes."""
    mine = nn.Linear(whole.in_features, whole.out_features // RANKS)
    with torch.no_grad():
        for ours, theirs in ((mine.weight, whole.weight), (mine.bias, whole.bias)):
            ours.copy_(torch.cat([part.chunk(RANKS)[RANK] for part in theirs.chunk(parts)]))
    return mine


class ParallelAttention(nn.Module):
    def __init__(self, whole: Attention, fault: str) -> None:
        super().__init__()
        self.qkv, self.out = columns(whole.qkv, 3), ParallelRows(whole.out, fault)
        self._heads = HEADS // RANKS

    def forward(self, x: Tensor) -> Tensor:
        return self.out(attended(self.qkv(ToRanks.apply(x)), self._heads))


def tensor_parallel(fault: str = "") -> nn.Module:
    model = build()
    block = model.block
    block.attention = ParallelAttention(block.attention, fault)  # type: ignore[assignment]
    block.up, block.down = columns(block.up), ParallelRows(block.down, "")  # type: ignore[assignment]
    block.up.register_forward_pre_hook(lambda _, args: (ToRanks.apply(args[0]),))
    return model


def build() -> Gpt:
    torch.manual_seed(0)
    return Gpt()


def reduce_gradients(model: nn.Module, divisor: int = RANKS, but: str = "") -> None:
    """Make the mean over ranks of all gradients, but for that of one parameter."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        if name == but:
            continue
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(divisor)


def reduce_flat(model: nn.Module, *, scatter: bool, divisor: int = RANKS) -> None:
    """Make the mean of all gradients in one tensor, by all-reduce or in two halves (ZeRO-1 and ZeRO-2)."""
    parameters = list(model.parameters())
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    if scatter:
        half = torch.empty(len(flat) // RANKS)
        dist.reduce_scatter_tensor(half, flat)
        dist.all_gather_into_tensor(flat, half)
    else:
        dist.all_reduce(flat)
    flat.div_(divisor)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def train(
    path: Path,
    model: nn.Module,
    take: Callable[[Tensor], Tensor] = lambda x: x,
    reduce: Callable[[nn.Module], None] = lambda model: None,
) -> None:
    """Record two steps; `take` gives this rank's part of a batch, `reduce` what is done before the optimizer's step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for step in range(2):
            text = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
            text = take(text)
            optimizer.zero_grad()
            F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
            reduce(model)
            optimizer.step()
            dump.step()


def single(folder: Path) -> None:
    train(folder / "single", build())


def by_hand(folder: Path) -> None:
    """Two ranks: honest layouts, and a mistake in one."""
    alone(single, folder)
    init(folder, RANKS)
    train(folder / "flat", build(), consecutive, partial(reduce_flat, scatter=False))
    train(folder / "flat.scattered", build(), consecutive, partial(reduce_flat, scatter=True))
    train(folder / "left_out", build(), consecutive, lambda model: reduce_gradients(model, but="block.up.bias"))
    train(folder / "ddp", nn.parallel.DistributedDataParallel(build()), consecutive)
    train(folder / "ddp.buckets", nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=0.002), consecutive)
    train(folder / "tensor_parallel", tensor_parallel())


def more_by_hand(folder: Path) -> None:
    """Two ranks: more of both, which take as long again."""
    alone(single, folder)
    init(folder, RANKS)
    train(folder / "averaged", build(), consecutive, reduce_gradients)
    train(folder / "flat.summed", build(), consecutive, partial(reduce_flat, scatter=False, divisor=1))
    train(folder / "flat.scattered", build(), consecutive, partial(reduce_flat, scatter=True))
    train(folder / "summed", build(), consecutive, lambda model: reduce_gradients(model, 1))
    train(folder / "ddp", nn.parallel.DistributedDataParallel(build()), consecutive)
    for fault in ("bias", "unreduced"):
        train(folder / f"tensor_parallel.{fault}", tensor_parallel(fault))
    if FSDP_ON_CPU:
        model = build()
        shard(model.block)
        train(folder / "fsdp", shard(model), consecutive)


PROGRAMS: dict[str, Callable[[Path], None]] = {"by_hand": by_hand, "more_by_hand": more_by_hand}


if __name__ == "__main__":
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
    torch.save({}, Path(sys.argv[2]) / f"rank{RANK}.pt")
    dist.destroy_process_group()
