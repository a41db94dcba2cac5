"""Ops on lists of tensors that treat each item by itself: the k-th result depends on the k-th items alone."""

from __future__ import annotations

from typing import Final

from ...store.op_names import UNSCALE_GRADIENTS, read_op_name

_PREFIXES: Final = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")


def works_by_item(op: str) -> bool:
    """Return True if an op treats the items of its lists one by one."""
    return op.startswith(UNSCALE_GRADIENTS) or read_op_name(op).name.startswith(_PREFIXES)


def item_of(op: str, slot: str) -> int | None:
    """Return the number of the item that a slot (``mutated.self.3``, ``input.1.3``, ``output.3``) is, or belongs to.

    None where the op does not work by item, and for slots that all items have in common.
    """
    if not works_by_item(op):
        return None
    parts = slot.split(".")
    least = 2 if parts[0] == "output" else 3
    return int(parts[-1]) if len(parts) >= least and parts[-1].isdigit() else None
