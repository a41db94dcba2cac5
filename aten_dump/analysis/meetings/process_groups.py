"""Which group a collective belongs to, and between whom a message goes, from the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...dump import Call
from ...store.op_names import TRANSFER_NAMESPACES, WAIT_TENSOR, read_op_name

_BETWEEN_TWO: Final = ("send", "recv")  # from one rank to another: the others of the group have no part in it


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A process group: its name, and the global ranks in it."""

    name: str
    ranks: tuple[int, ...]


def group_of(call: Call) -> RankGroup | None:
    """Return the group of ranks that a call meets; None for a call that meets none."""
    if call.kind != "aten":
        return None
    name = read_op_name(call.op)
    if name.namespace not in TRANSFER_NAMESPACES or name.without_overload == WAIT_TENSOR:
        return None
    for item in leaves(call.inputs):
        if isinstance(item, dict) and "group" in item and isinstance(item.get("ranks"), (list, tuple)):
            return RankGroup(str(item["group"]), tuple(item["ranks"]))
    return None


def is_message(op: str) -> bool:
    """Return True if an op sends to one rank, or receives from one."""
    return read_op_name(op).name.startswith(_BETWEEN_TWO)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield tensors, literals and the dicts that stand for objects."""
    if isinstance(tree, dict) and "ranks" not in tree:
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree
