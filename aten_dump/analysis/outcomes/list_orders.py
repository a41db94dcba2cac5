"""Ops on lists of tensors that were given another order of the same parameters.

Theory of operation
    Optimizers that were handed the parameters otherwise run the same ops on lists whose items do not belong together
    one by one. Shapes tell, and the names of the parameters and gradients that are among the items; if they tell it of
    one list, it holds for all that are as long. Such calls are no pairs: what each of their items comes to is
    compared, as that of an optimizer that has a call for each parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...dump import Call, Value
from ..evidence.evidence_rows import Pair
from ..flow.data_flow import DataFlow
from ..flow.leaves import LeafGradient, named_leaves
from ..rerun.list_ops import item_of, works_by_item

Gradients = Mapping[int, LeafGradient]  # by id of the call that accumulates


def in_another_order(
    pairs: Iterable[Pair], flows: tuple[DataFlow, DataFlow], gradients: Sequence[Gradients]
) -> set[int]:
    """Return the ids of the target's calls that are given the same list as their partners in another order.

    Args:
        pairs: calls of one kind.
        flows: the target's and the baseline's.
        gradients: what was accumulated into which leaf, on both sides.
    """
    names = [_names(flow, found) for flow, found in zip(flows, gradients, strict=True)]
    by_length: dict[tuple[int, int], list[int]] = {}
    told: set[tuple[int, int]] = set()
    for pair in pairs:
        if not works_by_item(pair.target.op) or pair.target.op != pair.baseline.op:
            continue
        ours, theirs = _items(pair.target), _items(pair.baseline)
        if len(ours) < 2 or len(theirs) < 2:
            continue
        lengths = len(ours), len(theirs)
        by_length.setdefault(lengths, []).append(pair.target.id)
        shapes = [tuple(v.shape) for v in ours], [tuple(v.shape) for v in theirs]
        named = [names[0].get(v.id) for v in ours], [names[1].get(v.id) for v in theirs]
        if _is_reordered(*shapes) or (None not in (*named[0], *named[1]) and _is_reordered(*named)):
            told.add(lengths)
    return {number for lengths in told for number in by_length[lengths]}


def _items(call: Call) -> list[Value]:
    """Return the items of the first list that a call is given."""
    return [v for slot, v in call.input_values() if slot.startswith("input.0.") and item_of(call.op, slot) is not None]


def _names(flow: DataFlow, gradients: Gradients) -> dict[int, str]:
    """Return the names of parameters and of their gradients, by value id."""
    leaves = named_leaves(flow, gradients)
    return {value.id: name for name, value in (*flow.rank.gradients.items(), *leaves.items())}


def _is_reordered(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    """Tell whether items of one list stand in the other at another place, and none is missing in the longer one."""
    common = min(len(ours), len(theirs))
    fewer, more = sorted((Counter(ours), Counter(theirs)), key=Counter.total)
    return ours[:common] != theirs[:common] and fewer <= more
