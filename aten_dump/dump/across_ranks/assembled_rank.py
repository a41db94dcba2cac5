"""One step as one program: what all its ranks recorded, put together.

Theory of operation
    Ranks of a parallel program run the same calls on parts of the tensors. `AssembledRank` shows the calls of the
    lead (the least rank that is there), without those that only serve the layout, and its values are whole: a value
    is an `Assembly` of what each rank held at the same place of the same call. Of a DTensor the recorded mesh and
    placements say how the parts lie. Of a plain tensor nobody recorded it: its grid stays open until somebody who
    knows the whole tensor (a comparison) settles it. Tensors are put together when they are read, and not kept.

    A DTensor and its local tensor are one value here, as are a collective's result before and after the wait: the
    program passes from one to the other (``to_local``, ``from_local``) without an op that could be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...store import records
from ...store.argument_trees import with_leaves
from ...store.records import TREE_VALUE, Tree
from ..handles import Value
from ..index.tables import Tables
from ..rank import RankDump
from .assembled_value import AssembledValue
from .whole_values import WholeValues


class AssembledRank(RankDump):
    """All ranks of one step, as one."""

    def __init__(self, whole: WholeValues, aside: Mapping[int, str], ids: Mapping[int, int] | None = None) -> None:
        """Show the calls of the lead with whole values.

        Args:
            whole: the values, which go on to be settled while this is used.
            aside: ids of calls of the lead that only serve the layout, and what each is.
            ids: under which id each of the lead's values goes; None is that of its whole.
        """
        self.whole = whole
        self.lead = whole.lead
        self.aside = aside
        self.ids = dict(whole.ids if ids is None else ids)
        super().__init__(self.lead.directory, self.lead.step, self.lead.rank)
        self.source = self.lead.source

    @property
    def ranks(self) -> dict[int, RankDump]:
        """What was recorded, by rank."""
        return self.whole.ranks

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the run that recorded nothing of the step."""
        return self.whole.missing_ranks

    @property
    def where(self) -> str:
        """Path, step and ranks, as errors name them."""
        ranks = ", ".join(map(str, self.whole.ranks))
        return f"{self.directory.parent.parent} (step {self.step}, ranks {ranks} together)"

    @cached_property
    def tables(self) -> Tables:
        lead = self.lead.tables
        changed: list[tuple[Any, ...]] = [_renamed(call, self.ids) for call in lead.calls if call.id not in self.aside]
        changed += [self.whole.record(record.id) for record in lead.values.records()]
        changed += [g._replace(value=self.ids.get(g.value, g.value)) for g in lead.gradients]
        return self.source.changed_tables(
            self.where, changed, (records.CALL, records.OPEN, records.VALUE, records.GRADIENT)
        )

    def value_by_id(self, id: int) -> Value:
        value = super().value_by_id(id)
        return AssembledValue(self, value.record, self.whole.assembly(id))

    @cached_property
    def _first_seen(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for number, id in self.ids.items():
            found[id] = min(number, found.get(id, number))
        return found

    def seen_at(self, value_id: int) -> int:
        """Return a number that rises in the order in which values are first seen, under whatever id they go."""
        return self._first_seen.get(value_id, value_id)

    def renamed(self, aliases: Mapping[int, int]) -> AssembledRank:
        """Return the same with values under the ids of others that hold the same."""
        ids = {number: aliases.get(id, id) for number, id in self.ids.items()}
        return AssembledRank(self.whole, self.aside, ids)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(id(self))


def _renamed(call: records.Call, ids: Mapping[int, int]) -> records.Call:
    """Return a call with the ids of its values replaced."""

    def renamed(tree: Tree) -> Tree:
        return with_leaves(tree, lambda leaf: _renamed_leaf(leaf, ids))

    written = None
    if call.written is not None:
        written = [tree if at % 2 == 0 else renamed(tree) for at, tree in enumerate(call.written)]
    return call._replace(
        args=[renamed(tree) for tree in call.args],
        kwargs=call.kwargs and {name: renamed(tree) for name, tree in call.kwargs.items()},
        outputs=renamed(call.outputs),
        written=written,
    )


def _renamed_leaf(leaf: Tree, ids: Mapping[int, int]) -> Tree:
    is_value = isinstance(leaf, tuple) and leaf[0] == TREE_VALUE
    return (TREE_VALUE, ids.get(leaf[1], leaf[1])) if is_value else leaf
