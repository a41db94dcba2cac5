"""Collectives as ops that are given what all ranks give to them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...dump import Call, Value
from ...errors import ReplayError
from ..evaluation.memory import Memory
from ..flow.data_flow import DataFlow, Slots
from ..meetings.collective_reference import Asked, got, input_splits_of, name_of, reduction_of
from ..meetings.meeting_points import root_of
from ..meetings.process_groups import group_of
from .joined_rank import JoinedRank

Brought = dict[int, dict[str, torch.Tensor]]


class JoinedFlow(DataFlow):
    """The flow of data of all ranks: what a collective brings is made of what all of them give."""

    rank: JoinedRank

    def behind(self, call: Call, slot: str) -> Slots:
        others = (self.rank.call(number) for number in self.rank.meetings.get(call.id, ()) if number != call.id)
        return [*super().behind(call, slot), *(read for other in others for read in self.reads(other))]


class JoinedTransfers:
    """Runs the collectives of a recording of all ranks."""

    def __init__(self, flow: JoinedFlow) -> None:
        self._flow = flow
        self._rank = flow.rank

    def __contains__(self, call: object, /) -> bool:
        return call in self._rank.meetings

    def run(self, call: Call, memory: Memory) -> Brought:
        """Return what each of the calls that meet one brings, by its id and slot.

        Raises:
            ReplayError: what such a collective must deliver is not known.
        """
        calls = [self._rank.call(number) for number in self._rank.meetings[call.id]]
        sent = [[memory.find(value).detach().clone() for _, value in self._flow.reads(one)] for one in calls]
        group = group_of(call)
        if group is None:
            raise ReplayError("a collective of an unknown group")
        is_message = any(name_of(one).startswith(("send", "recv")) for one in calls)
        found: Brought = {}
        numbers = [self._rank.number_of(one.id) for one in calls]
        splits = tuple(input_splits_of(one) for one in calls)
        for place, one in enumerate(calls):
            results: list[torch.Tensor] | None
            if is_message:
                results = sent[0] if place else []
            else:
                root = root_of(one, group)
                asked = Asked(place, None if root is None else numbers.index(root), reduction_of(one), splits)
                results = got(name_of(one), sent, asked)
            if results is None:
                raise ReplayError(f"a collective: what {one.op} must deliver is not known here")
            found[one.id] = dict(_laid(one, results, memory))
        return found


def _laid(call: Call, results: list[torch.Tensor], memory: Memory) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each result of a call, by slot, in the memory that the call was given for it."""
    given = {value.record.place: value for _, value in call.input_values() if value.storage}
    made: dict[int, tuple[Value, list[str]]] = {}
    for slot, value in call.result_values():
        made.setdefault(value.id, (value, []))[1].append(slot)
    if made and len(made) != len(results):
        raise ReplayError("a collective: its results are not as many as its ranks sent")
    for (value, names), result in zip(made.values(), results, strict=False):
        there = given.get(value.record.place)
        tensor = result.reshape(value.shape) if there is None else memory.blank(there)
        if there is not None:
            tensor.copy_(result.reshape(tensor.shape))
        yield from ((name, tensor) for name in names)
