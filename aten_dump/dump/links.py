"""Links: who made and who read a value, who ran in whom, who belongs to whom; each index is built at first use.

Links hold positions and ids only; slots are found again by walking the one call that is asked about.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from ..store import records
from ..store.index import paused_gc
from .recompute import originals_of
from .tables import Tables
from .trees import collect

# Kinds from the innermost outwards: of all calls that return a value, the innermost made it.
_INNERMOST_FIRST: Final = {"aten": 0, "node": 1, "api": 2, "module": 3}


class Links:
    """The relations between the calls and values of one index."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @cached_property
    def names(self) -> dict[str, int]:
        """Position of a call by its name."""
        call_name = self._tables.call_name
        with paused_gc():
            return {call_name(call): position for position, call in enumerate(self._tables.calls)}

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Positions of the calls that ran in a call, by its id; those of the roots under 0.

        A call whose parent was cut short before it was recorded counts as a root.
        """
        known = self._tables.positions
        found: dict[int, list[int]] = {}
        with paused_gc():
            for position, call in enumerate(self._tables.calls):
                found.setdefault(call.parent if call.parent in known else 0, []).append(position)
        return found

    @cached_property
    def belonging(self) -> dict[int, list[int]]:
        """Positions of the backward and recomputed calls of a forward call, by its id."""
        found: dict[int, list[int]] = {}
        with paused_gc():
            for position, call in enumerate(self._tables.calls):
                forward = call.forward or self.originals.get(call.id)
                if forward:
                    found.setdefault(forward, []).append(position)
        return found

    @cached_property
    def originals(self) -> dict[int, int]:
        """Id of the call that a recomputed call runs again, by its id."""
        return originals_of(self._tables)

    @property
    def producers(self) -> dict[int, int]:
        """Position of the call that made a value, by value id."""
        return self._uses[0]

    @property
    def consumers(self) -> dict[int, list[int]]:
        """Positions of the calls that read a value, by value id."""
        return self._uses[1]

    @cached_property
    def _uses(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Producers and consumers, in one pass over the argument trees.

        The producer is the innermost, then earliest call that has the value among its outputs or written
        arguments and not among its inputs. A value that an op read before any call made it came from outside: a
        later op that returns it (a parameter transposed twice) only passed it on.
        """
        depths = {op.id: _INNERMOST_FIRST[records.CALL_KINDS[op.call_kind]] for op in self._tables.ops.records()}
        producers: dict[int, int] = {}
        producer_depths: dict[int, int] = {}
        consumers: dict[int, list[int]] = {}
        from_outside: set[int] = set()
        with paused_gc():
            for position, call in enumerate(self._tables.calls):
                read = dict.fromkeys(_inputs(call))
                for value in read:
                    consumers.setdefault(value, []).append(position)
                depth = depths.get(call.op, len(_INNERMOST_FIRST))
                if depth == 0:  # only ops run at one moment; what others read may have come while they ran
                    from_outside.update(value for value in read if value not in producers)
                for value in _results(call):
                    if value in read or value in from_outside:
                        continue
                    if depth < producer_depths.get(value, 99):
                        producers[value] = position
                        producer_depths[value] = depth
        return producers, consumers

    @cached_property
    def first_values(self) -> dict[int, int]:
        """Least value id of a storage, by storage id: the value that the storage was first seen as."""
        found: dict[int, int] = {}
        for value in self._tables.values.records():
            if value.storage and value.id < found.get(value.storage, value.id + 1):
                found[value.storage] = value.id
        return found


def _inputs(call: records.Call) -> list[int]:
    found: list[int] = []
    for tree in call.args:
        if type(tree) is tuple:
            collect(tree, found)
    if call.kwargs:
        for tree in call.kwargs.values():
            collect(tree, found)
    return found


def _results(call: records.Call) -> list[int]:
    found: list[int] = []
    collect(call.outputs, found)
    if call.written:
        for tree in call.written[1::2]:
            collect(tree, found)
    return found
