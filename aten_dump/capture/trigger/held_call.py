"""A call that has ended, as a ring holds it, and which values it names."""

from __future__ import annotations

from collections.abc import Iterable

from ...store.records import TREE_DICT, TREE_LIST, TREE_TUPLE, TREE_VALUE, Call, Tree


class HeldCall:
    """A call that has ended, with its position among all calls of the run."""

    __slots__ = ("inputs", "position", "record", "results")

    def __init__(self, position: int, record: Call) -> None:
        self.position = position
        self.record = record
        self.inputs = values_in(record.args)  # value ids of the arguments
        if record.kwargs:
            self.inputs += values_in(record.kwargs.values())
        self.results = values_in((record.outputs,))  # value ids of what it returned and wrote
        if record.written:
            self.results += values_in(record.written[1::2])


def values_in(trees: Iterable[Tree]) -> list[int]:
    """Return the value ids in some trees, in order."""
    found: list[int] = []
    for tree in trees:
        if not isinstance(tree, (list, tuple)):
            continue
        kind = tree[0]
        if kind == TREE_VALUE:
            found.append(tree[1])
        elif kind in (TREE_LIST, TREE_TUPLE):
            found += values_in(tree[1:])
        elif kind == TREE_DICT:
            found += values_in(tree[2::2])
    return found
