"""What an op wrote: new versions of the memory."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...store.records import Tree
from ..naming.op_schemas import OpPlan
from ..values.argument_encoding import encode
from ..values.value_ids import ValueIds

_TENSOR: Final = torch.Tensor


def note_writes(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], values: ValueIds, keep: bool | None
) -> list[Tree] | None:
    """Begin new versions of what the op wrote, and return [name, tree, ...] of it.

    Args:
        plan: of the op.
        args: what it was given.
        kwargs: by name.
        values: of the step.
        keep: keep the data of what was written; None: return nothing, the call is not recorded.
    """
    if not plan.writes:
        return None
    if plan.enabled_by is not None and not (
        args[plan.enabled_by] if plan.enabled_by < len(args) else kwargs.get(plan.arguments[plan.enabled_by])
    ):
        return None
    written: list[Tree] = []
    for position, name in plan.writes:
        target = args[position] if position < len(args) else kwargs.get(name)
        tensors = [t for t in (target if isinstance(target, (list, tuple)) else (target,)) if isinstance(t, _TENSOR)]
        _begin_versions(values, plan, args, tensors)
        if keep is not None and tensors:
            written += (name, encode(target, values, keep))
    return written or None


def _begin_versions(values: ValueIds, plan: OpPlan, args: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
    """Begin new versions of `tensors`, which the op wrote."""
    if plan.copies and len(args) > 1 and isinstance(args[1], _TENSOR):
        values.storages.copied(tensors[0], args[1])
        return
    storages = values.storages
    for tensor in tensors:
        if not plan.reshapes or storages.state_of(tensor) is None:  # to reshape a sparse tensor writes to its parts
            storages.written(tensor)
