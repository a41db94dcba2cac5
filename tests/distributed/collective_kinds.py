"""Every collective on every kind of tensor, bare and recorded: ``python -m tests.distributed.collective_kinds sweep FOLDER``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from aten_dump import DumpConfig, DumpMode

Tensor = torch.Tensor
Run = Callable[[Tensor], Any]


def kinds(rank: int) -> dict[str, Tensor]:
    """Tensors of rank `rank`, with two rows each where they have rows."""
    dense = torch.arange(8.0).reshape(2, 4) + rank
    return {
        "strided": dense,
        "transposed": dense.t().contiguous().t(),
        "every second": torch.arange(16.0).reshape(2, 8)[:, ::2] + rank,
        "empty": torch.zeros(0, 4),
        "complex64": torch.complex(dense, -dense),
        "int64": dense.long(),
        "bool": dense > 3,
        "bfloat16": dense.bfloat16(),
        "sparse": torch.sparse_coo_tensor([[0, 1], [rank, 3]], [1.0, 2.0 + rank], (2, 4)),
        "sparse embedding": torch.sparse_coo_tensor([[rank, 2]], torch.ones(2, 3) + rank, (4, 3)),
    }


def _list(tensor: Tensor) -> list[Tensor]:
    return [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]


def _all_gather(tensor: Tensor) -> Any:
    out = _list(tensor)
    dist.all_gather(out, tensor)
    return out


def _all_gather_into_tensor(tensor: Tensor) -> Any:
    out = tensor.new_zeros((2 * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(out, tensor)
    return out


def _reduce_scatter_tensor(tensor: Tensor) -> Any:
    out = tensor.new_zeros((tensor.shape[0] // 2, *tensor.shape[1:]))
    dist.reduce_scatter_tensor(out, tensor)
    return out


def _in_place(collective: Callable[..., Any]) -> Run:
    def run(tensor: Tensor) -> Any:
        collective(tensor)
        return tensor

    return run


def _waiting(collective: Callable[..., Any]) -> Run:
    def run(tensor: Tensor) -> Any:
        collective(tensor, async_op=True).wait()
        return tensor

    return run


def _all_to_all_single(tensor: Tensor) -> Any:
    out = torch.zeros_like(tensor)
    dist.all_to_all_single(out, tensor)
    return out


def _send_and_receive(tensor: Tensor) -> Any:
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return tensor


GROUP = [0, 1]
COLLECTIVES: dict[str, Run] = {
    "all_reduce": _in_place(dist.all_reduce),
    "all_reduce async": _waiting(dist.all_reduce),
    "broadcast": _in_place(lambda t: dist.broadcast(t, 0)),
    "reduce": _in_place(lambda t: dist.reduce(t, 0)),
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "all_to_all_single": _all_to_all_single,
    "send and recv": _send_and_receive,
    "functional all_reduce": lambda t: functional.all_reduce(t, "sum", GROUP) + 0,
    "functional all_gather_tensor": lambda t: functional.all_gather_tensor(t, 0, GROUP) + 0,
    "functional reduce_scatter_tensor": lambda t: functional.reduce_scatter_tensor(t, "sum", 0, GROUP) + 0,
    "functional broadcast": lambda t: functional.broadcast(t, 0, GROUP) + 0,
    "functional all_to_all_single": lambda t: functional.all_to_all_single(t, None, None, GROUP) + 0,
}
# Gloo ends the process or waits for ever where the bare call is given these.
REFUSED = {
    (name, kind)
    for kind in ("sparse", "sparse embedding")
    for name in COLLECTIVES
    if name not in ("all_reduce", "all_reduce async")
}


def outcome(run: Run, tensor: Tensor) -> Any:
    """What a collective returns, as dense tensors, or the text of its error."""
    try:
        result = run(tensor)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    results = result if isinstance(result, list) else [result]
    return [r.to_dense().clone() if r.is_sparse else r.clone() for r in results]


def sweep(folder: Path) -> dict[str, Any]:
    """Run each collective on each kind bare, and again in one recorded step."""
    rank = dist.get_rank()
    cases = [(name, kind) for name in COLLECTIVES for kind in kinds(rank) if (name, kind) not in REFUSED]
    bare = {case: outcome(COLLECTIVES[case[0]], kinds(rank)[case[1]]) for case in cases}
    with DumpMode(DumpConfig(path=folder / "dump", data="full")):
        recorded = {case: outcome(COLLECTIVES[case[0]], kinds(rank)[case[1]]) for case in cases}
    return {"bare": bare, "recorded": recorded}


def main(name: str, folder: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
    assert name == "sweep"
    torch.save(sweep(folder), folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
