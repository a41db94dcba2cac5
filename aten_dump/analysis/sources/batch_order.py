"""Finds out if both sides have the same batch in different orders: samples and labels are permuted.

Theory of operation
    Sources without a counterpart that are read in the same role on both sides may have the same rows in another order,
    which is one order for all of them. The baseline is then evaluated on the target's rows. Weights with rows in
    another order do not count: a port may store heads in this way. They require grad, and their orders differ from one
    another.

    If ranks compute with each other's rows, the order must be the same on all of them. The results of collectives show
    that: they are equal to the baseline's, or equal in the order of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ...dump import Value
from ...store.op_names import WAIT_TENSOR, is_collective
from ..evaluation.memory import UNREADABLE
from ..flow.data_flow import DataFlow
from ..rerun.start_tensors import start_tensors
from .stand_ins import Sources, roles

_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of the rows of a batch."""

    order: tuple[int, ...]  # the target's row for each of the baseline's
    contents: dict[int, torch.Tensor]  # the target's, by id of the baseline's source

    def __str__(self) -> str:
        moved = [(mine, theirs) for theirs, mine in enumerate(self.order) if mine != theirs]
        named = ", ".join(f"row {mine} is the baseline's row {theirs}" for mine, theirs in sorted(moved)[:_MOST_NAMED])
        more = ", ..." if len(moved) > _MOST_NAMED else ""
        return f"the target's batch of {len(self.order)} rows is in another order: {named}{more}"


def batch_order(flows: tuple[DataFlow, DataFlow], sources: Sources) -> BatchOrder | None:
    """Return the order of the baseline's batch in the target, or None if that does not explain all sources.

    Args:
        flows: of both sides.
        sources: matched. No paired source may have as many rows in an order that matters: labels in the old order would
            now belong to other rows.
    """
    if not sources.baseline or len(sources.baseline) != len(sources.target):
        return None
    places = roles(flows[0]), roles(flows[1])
    by_role = {places[0].get(value.id): value for value in sources.target}
    pairs = []
    for value in sources.baseline:
        one = by_role.get(places[1].get(value.id))
        if one is None or one.shape != value.shape or value.requires_grad or not value.shape or value.shape[0] < 2:
            return None
        if {one.layout_name, value.layout_name} != {"strided"}:  # a sparse gradient is no batch
            return None
        pairs.append((one, value))
    if len({one.shape[0] for one, _ in pairs}) > 1:
        return None
    try:
        read = [[start_tensors([value])[value.id] for value in pair] for pair in pairs]
    except UNREADABLE:
        return None
    found = next((order for ours, theirs in read if (order := _order_of(ours, theirs)) is not None), None)
    if found is None or not all(torch.equal(ours[list(found)], theirs) for ours, theirs in read):
        return None
    kept = [one for one, _, _ in sources.pairs if one.shape[:1] == (len(found),) and not one.requires_grad]
    kept = [one for one in kept if one.layout_name == "strided"]
    if any(_order_counts(value, found) for value in kept):
        return None
    return BatchOrder(found, {value.id: ours for (_, value), (ours, _) in zip(pairs, read, strict=True)})


def is_met(flows: tuple[DataFlow, DataFlow], order: BatchOrder) -> bool:
    """Return True if the results of collectives on this rank fit a batch in another order.

    As recorded they are equal on both sides, as sums over samples are, or equal in the order of the batch.
    """
    brought = [[*_brought(flow)] for flow in flows]
    if len(brought[0]) != len(brought[1]):
        return True  # other layouts: the collectives of both sides do not correspond
    return all(_fits(one, other, order.order) for one, other in zip(*brought, strict=True))


def _brought(flow: DataFlow) -> Iterator[Value]:
    """Yield the results of a rank's collectives in order; of asynchronous ones, as they were after the wait."""
    calls = [call for call in flow.calls() if call.op == WAIT_TENSOR or is_collective(call.op)]
    waited = {value.storage for call in calls if call.op == WAIT_TENSOR for _, value in flow.reads(call)}
    for call in calls:
        for _, value in flow.results(call):
            if value.is_floating and (call.op == WAIT_TENSOR or value.storage not in waited):
                yield value


def _fits(ours: Value, theirs: Value, order: Sequence[int]) -> bool:
    """Return True if two values are equal, or equal with the rows in an order, or if that is unknown."""
    if ours.shape != theirs.shape:
        return False
    try:
        # NaN proves nothing.
        one, other = (value.tensor().double().nan_to_num(0.0, 0.0, 0.0) for value in (ours, theirs))
    except UNREADABLE:
        return True
    allowed = math.sqrt(torch.finfo(ours.dtype).eps) * float(other.norm())
    rows, wanted = len(order), torch.argsort(torch.tensor(order))
    turned = [other]
    for dim, size in enumerate(other.shape):
        if size and size % rows == 0:
            turned.append(other.unflatten(dim, (rows, -1)).index_select(dim, wanted).flatten(dim, dim + 1))
            turned.append(other.unflatten(dim, (-1, rows)).index_select(dim + 1, wanted).flatten(dim, dim + 1))
    return any(float((one - like).norm()) <= allowed for like in turned)


def _order_counts(value: Value, order: Sequence[int]) -> bool:
    """Return True if another order changes the rows of a value."""
    try:
        tensor = start_tensors([value])[value.id]
    except UNREADABLE:
        return True
    return not torch.equal(tensor[list(order)], tensor)


def _order_of(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[int, ...] | None:
    """Return the row of one tensor for each row of another; None if rows repeat or are missing."""
    rows = [[row.numpy().tobytes() for row in one.contiguous()] for one in (ours, theirs)]
    known = {row: number for number, row in enumerate(rows[0])}
    if len(known) < len(rows[0]) or not all(row in known for row in rows[1]):
        return None
    return tuple(known[row] for row in rows[1])
