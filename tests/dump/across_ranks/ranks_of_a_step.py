"""Steps of several ranks, made by hand: the same calls on parts of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.across_ranks.whole_values import Correspondence, WholeValues
from aten_dump.store import records as r
from tests.dump.building import Builder, value

MESH = {"device": "cpu", "dim_names": ["tp"], "shape": [2], "ranks": [0, 1]}


def dtensor(builder: Builder, shape: Sequence[int], local: int, placement: str, mesh: dict[str, Any] = MESH) -> int:
    """Record a DTensor of a local tensor that is recorded."""
    number = builder.next("value")
    stride = list(torch.empty(shape, device="meta").stride())
    extra = {"class": "torch.distributed.tensor.DTensor", "local": local, "mesh": mesh, "placements": [placement]}
    builder.emit(
        r.Value(
            r.VALUE, number, 0, 0, 0, builder.text("float32"), list(shape), stride, r.OPAQUE, {**extra, "device": "cpu"}
        )
    )
    return number


def ranks_of(
    folder: Path, parts: Sequence[torch.Tensor], placement: str | None, shape: Sequence[int], lost: Sequence[int] = ()
) -> dict[int, RankDump]:
    """Record one call of each rank on its part (value 1), or on a DTensor of it (value 2); `lost` ranks keep no bytes."""
    found = {}
    for rank, part in enumerate(parts):
        builder = Builder(folder, 0, rank)
        number = builder.value(part.contiguous(), store=None if rank in lost else "strided")
        if placement is not None:
            number = dtensor(builder, shape, number, placement)
        builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(number)], outputs=value(number))
        builder.finish()
        found[rank] = open_dump(folder).rank(0, rank)
    return found


def wholes(ranks: dict[int, RankDump], missing: Sequence[int] = ()) -> WholeValues:
    """Match all ids of the ranks one to one."""
    lead, *others = ranks.values()
    calls, values = ({one.id: one.id for one in part} for part in (lead.calls, lead.values))
    return WholeValues(ranks, {rank.rank: Correspondence(calls, values) for rank in others}, list(missing))
