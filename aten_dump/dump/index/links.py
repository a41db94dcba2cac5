"""Links: who made and who read a value, who ran in whom, who belongs to whom; each index is built at first use.

Links hold positions and ids only; slots are found again by walking the one call that is asked about.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from ...store import records
from ...store.argument_trees import input_ids, result_ids
from ...store.index_reader import paused_gc
from .call_names import CallNames
from .recomputed_calls import originals_of
from .tables import Tables
from .typed_rows import Groups

# Kinds from the innermost outwards: of all calls that return a value, the innermost made it.
_INNERMOST_FIRST: Final = {"aten": 0, "node": 1, "api": 2, "module": 3}


class Links:
    """The relations between the calls and values of one index."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @cached_property
    def names(self) -> CallNames:
        """Position of a call by its name."""
        return CallNames(self._tables)

    @cached_property
    def children(self) -> Groups:
        """Positions of the calls that ran in a call, by its id; those of the roots under 0.

        A call whose parent was cut short before it was recorded counts as a root.
        """
        calls = self._tables.calls
        parents = calls.column("parent")
        return Groups(np.where(np.isin(parents, calls.column("id")), parents, 0))

    @cached_property
    def belonging(self) -> Groups:
        """Positions of the backward and recomputed calls of a forward call, by its id."""
        calls = self._tables.calls
        forward = calls.column("forward").copy()
        for id, original in self.originals.items():
            at = calls.places[id]
            forward[at] = forward[at] or original
        return Groups(forward)

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
                read = dict.fromkeys(input_ids(call))
                for value in read:
                    consumers.setdefault(value, []).append(position)
                depth = depths.get(call.op, len(_INNERMOST_FIRST))
                if depth == 0:  # only ops run at one moment; what others read may have come while they ran
                    from_outside.update(value for value in read if value not in producers)
                for value in result_ids(call):
                    if value in read or value in from_outside:
                        continue
                    if depth < producer_depths.get(value, 99):
                        producers[value] = position
                        producer_depths[value] = depth
        return producers, consumers

    def first_value(self, storage: int, value: int) -> int:
        """Return the value that a storage was first seen as; `value` where it is unknown."""
        positions = self._by_storage.get(storage, ()) if storage else ()
        return min((self._tables.values.rows[position][1] for position in positions), default=value)

    @cached_property
    def _by_storage(self) -> Groups:
        """Positions of the values of a storage, by its id."""
        return Groups(self._tables.values.rows.column(2))
