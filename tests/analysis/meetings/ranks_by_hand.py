"""Recordings of ranks that meet in one all-reduce and one message, written by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from aten_dump.dump import RankDump, open_dump
from aten_dump.store.records import TREE_BYTES, TREE_DICT, TREE_LIST
from tests.dump.building import Builder, value

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def group(ranks: int) -> object:
    return [TREE_DICT, "group", "0", "backend", "gloo", "ranks", [TREE_LIST, *range(ranks)]]


def reducing(folder: Path, *given: torch.Tensor, delivered: torch.Tensor | None = None) -> list[RankDump]:
    """Return ranks that all-reduced what they were given; `delivered` is what rank 0 got where that was wrong."""
    total = torch.stack(given).sum(0)
    for rank, tensor in enumerate(given):
        b = Builder(folder, 0, rank)
        names = ("tensors", "process_group", "reduce_op")
        reduce = b.op("aten", "c10d::allreduce_", "Distributed", "allreduce_", names)
        mine, result = b.value(tensor), total if rank or delivered is None else delivered
        made = b.value(result, version=1)
        args = [value(mine), group(len(given)), [TREE_BYTES, "ReduceOp.SUM"]]
        b.call(reduce, args=args, outputs=value(made), written=["tensors", value(made)])
        if rank < 2:
            kind = ("send", "dst", 1) if rank == 0 else ("recv_", "src", 0)
            message = b.op(
                "aten", f"c10d::{kind[0]}", "Distributed", kind[0], ("tensors", "process_group", kind[1], "tag")
            )
            got = ["tensors", value(b.value(result, version=2))] if rank else None
            b.call(message, args=[value(made), group(len(given)), kind[2], 7], written=got)
        b.finish()
    return [open_dump(folder).rank(0, rank) for rank in range(len(given))]
