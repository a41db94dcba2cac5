"""A data-parallel job of many ranks, simulated in one process, of which one rank may be wrong.

Each rank has a batch of its own and is recorded by itself; all-reduces bring it the true sum over all ranks, which was
worked out before. `python -m benchmarks.many_ranks` compares each fault with an honest run, and prints what was named.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode, compare

Grads = list[Tensor]
Alter = Callable[[Tensor], object]


@dataclass(frozen=True)
class Fault:
    """What one rank does otherwise."""

    name: str
    named: str  # what the answer must say: an op, or a part of a sentence
    ops: tuple[str, int] = ("", 0)  # the n-th call of an op whose result is altered
    alter: Alter = lambda out: None
    delivered: Alter = lambda out: None  # what an all-reduce brings, the first of the step
    batch: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y)
    optimizer: tuple[tuple[str, float], ...] = ()


def _element(out: Tensor) -> None:
    out.view(-1)[-1] += 0.05


def _scaled(out: Tensor) -> None:
    out.mul_(1.01)


def _lost(out: Tensor) -> None:
    out.select(-1, -1).zero_()


def _put(number: float) -> Alter:
    def put(out: Tensor) -> None:
        out.view(-1)[1] = number

    return put


FAULTS: Final = (
    Fault("an element of gelu", "aten::gelu", ("aten::gelu", 0), _element),
    Fault("a scaled product", "aten::addmm", ("aten::addmm", 1), _scaled),
    Fault("a lost column of a product", "aten::addmm", ("aten::addmm", 0), _lost),
    Fault("a scaled gradient of gelu", "aten::gelu_backward", ("aten::gelu_backward", 0), _scaled),
    Fault("an element of the gradient of a weight", "aten::mm", ("aten::mm", 0), _element),
    Fault("a scaled sum", "c10d::allreduce_", delivered=_scaled),
    Fault("an element of a sum", "c10d::allreduce_", delivered=_element),
    Fault("a lost column of a sum", "c10d::allreduce_", delivered=_lost),
    Fault("a sum that is zero", "c10d::allreduce_", delivered=lambda out: out.zero_()),
    Fault("a sum that is negative", "c10d::allreduce_", delivered=lambda out: out.neg_()),
    Fault("NaN of gelu", "aten::gelu", ("aten::gelu", 0), _put(float("nan"))),
    Fault("Inf of gelu", "aten::gelu", ("aten::gelu", 0), _put(float("inf"))),
    Fault("NaN of a product", "aten::addmm", ("aten::addmm", 1), _put(float("nan"))),
    Fault("NaN of a gradient", "aten::gelu_backward", ("aten::gelu_backward", 0), _put(float("nan"))),
    Fault("Inf of a gradient", "aten::mm", ("aten::mm", 0), _put(float("inf"))),
    Fault("another batch", "aten::addmm", batch=lambda x, y: (x + 0.25, y)),
    Fault("other targets", "aten::sub", batch=lambda x, y: (x, y * 2)),
    Fault("one sample less", "aten::addmm", batch=lambda x, y: (x * torch.tensor([[1.0], [1], [1], [0]]), y)),
    Fault("targets that are shifted", "aten::sub", batch=lambda x, y: (x, y.roll(1, 0))),
    Fault("a batch in half precision", "aten::_to_copy", batch=lambda x, y: (x.half().float(), y)),
    Fault("a learning rate", "lr", optimizer=(("lr", 0.06),)),
    Fault("a tenth of the learning rate", "lr", optimizer=(("lr", 0.005),)),
    Fault("weight decay", "weight_decay", optimizer=(("weight_decay", 0.01),)),
    Fault("more weight decay", "weight_decay", optimizer=(("weight_decay", 0.2),)),
    Fault("both of them", "lr", optimizer=(("lr", 0.1), ("weight_decay", 0.01))),
)
HONEST: Final = Fault("honest", "")
ORDERS: Final = ("given", "reversed", "shuffled", "pairwise")  # in which ranks are added up


class Cluster(TorchDispatchMode):
    """Below the recorder: alters results of a rank, and delivers what all ranks give together."""

    def __init__(self, fault: Fault, sums: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._fault = fault
        self._sums = sums
        self._begun = 0
        self._seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.c10d.allreduce_.default:
            for tensor in args[0]:
                tensor.copy_(self._sums[self._begun])
                if self._begun == 0:
                    self._fault.delivered(tensor)
                self._begun += 1
        elif self._fault.ops[0] and func._schema.name == self._fault.ops[0]:
            if self._seen == self._fault.ops[1]:
                self._fault.alter(out)
            self._seen += 1
        return out


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def _batch(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)


def _backward(net: nn.Module, rank: int, fault: Fault) -> None:
    x, y = fault.batch(*_batch(rank))
    (net(x) - y).square().mean().backward()


def _summed(given: Sequence[Grads], order: str) -> Grads:
    """Return the sums over all ranks, added up in float32 in some order; "exact" rounds once."""
    terms = [torch.stack(ones) for ones in zip(*given, strict=True)]
    if order == "exact":
        return [term.double().sum(0).float() for term in terms]
    if order == "pairwise":
        return [_halved(term) for term in terms]
    places = list(range(len(given)))
    if order == "reversed":
        places.reverse()
    if order == "shuffled":
        places = torch.randperm(len(given), generator=torch.Generator().manual_seed(3)).tolist()
    found = []
    for term in terms:
        total = torch.zeros_like(term[0])
        for place in places:
            total = total + term[place]
        found.append(total)
    return found


def _halved(term: Tensor) -> Tensor:
    while len(term) > 1:
        half = (len(term) + 1) // 2
        rest = term[half:]
        term = torch.cat([term[: len(rest)] + rest, term[len(rest) : half]])
    return term[0]


def record(
    folder: Path,
    ranks: int,
    fault: Fault = HONEST,
    bad: int = -1,
    order: str = "exact",
    data: str = "tensor",
    only: Sequence[int] | None = None,
) -> Path:
    """Record one step of a job of many ranks, or `only` some of them; rank `bad` has the fault."""
    given = []
    for rank in range(ranks):
        net, own = model(), fault if rank == bad else HONEST
        with Cluster(own):
            _backward(net, rank, own)
        given.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    sums = _summed(given, order)
    before = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    for rank in range(ranks) if only is None else only:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
        _record_rank(folder, rank, fault if rank == bad else HONEST, sums, data)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    return folder


def record_beside(honest: Path, folder: Path, ranks: int, fault: Fault, bad: int) -> Path:
    """Record a job with a fault; where that is behind the sums, the other ranks are copies of the honest ones."""
    if fault.ops[0] or fault.batch is not HONEST.batch:
        return record(folder, ranks, fault, bad)
    shutil.copytree(honest, folder)
    shutil.rmtree(folder / "step0" / f"rank{bad}")
    record(folder, ranks, fault, bad, only=(bad,))
    return folder


def _record_rank(folder: Path, rank: int, fault: Fault, sums: Grads, data: Any) -> None:
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), **{"lr": 0.05, **dict(fault.optimizer)})
    with Cluster(fault, sums), DumpMode(DumpConfig(path=str(folder), data=data), model=net) as dump:
        _backward(net, rank, fault)
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad.div_(world)
        optimizer.step()
        dump.step()
    dist.destroy_process_group()


def is_named(folder: Path, honest: Path, fault: Fault, bad: int, executor: Any = None) -> str:
    """Compare; return "" if the fault is named with its rank and nobody else is accused, else the answer."""
    found = compare(folder, honest, executor=executor)
    accused = {evidence.ranks[0] for evidence in found.ranks if evidence.findings}
    answer = found.answer()
    first = answer.partition("How the error travels")[0]
    fine = found.verdict == "different" and accused == {bad} and f"rank {bad}" in first and fault.named in answer
    return "" if fine else f"{found.verdict}, accused: {sorted(accused)[:5]}\n{answer[:1500]}"
