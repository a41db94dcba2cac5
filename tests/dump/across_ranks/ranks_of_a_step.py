"""Steps of several ranks, made by hand: the same calls on parts of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aten_dump.store import records as r
from tests.dump.building import Builder

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
