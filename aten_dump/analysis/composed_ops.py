"""Ops that only some devices have as one op, such as NPUs or GPUs, composed of others for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ..extensions import REFERENCES, extensions
from ..references.fused_op import FusedOp, References
from ..store.op_names import read_op_name
from ..torch_names import has_kernel_for


@lru_cache(maxsize=1)
def _all_references() -> References:
    """Return the tables of all references as one; of an op that two have, the first counts."""
    tables = [table for _, table in extensions(REFERENCES)]
    return References(
        {op: found for table in reversed(tables) for op, found in table.functions.items()},
        tuple(schema for table in tables for schema in table.schemas),
        {op: found for table in reversed(tables) for op, found in table.in_float64.items()},
    )


@lru_cache(maxsize=1)
def fused_ops() -> dict[str, FusedOp]:
    """Return the ops, by name, whose schema comes with their reference: they run where no package has them."""
    return {op.name(): op for op in map(FusedOp, reversed(_all_references().schemas))}


def composed(op: Any, device: torch.device) -> Callable[..., Any]:
    """Return the op, or what computes the same on a device that has no kernel for it."""
    references = _all_references()
    if op.name() in references.in_float64 and device.type == "cpu":
        return references.in_float64[op.name()]
    own = references.functions.get(op.name())
    if own is not None and isinstance(op, FusedOp):
        return own
    found: Callable[..., Any] = op
    return found if own is None or device.type != "cpu" or has_kernel_for(op.name(), "CPU") else own


def has_reference(op: str) -> bool:
    """Return True if there is something here that computes what an op does, and draws no random numbers."""
    functions = _all_references().functions
    return op in functions or read_op_name(op).without_overload in functions
