"""Losses of micro-batches, which add up to the loss of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from ...dump import Call, Value
from ..evidence.noise_floors import Limits
from ..flow.data_flow import DataFlow


class LossParts:
    """The numbers that losses are made of, where one recording calls backward on parts of what the other does.

    A part's number is no counterpart of the whole's, though calls that divide it, or put it into a log, look alike. Nor
    are their gradients: what a part is divided by, its gradient is too.
    """

    def __init__(
        self, flows: tuple[DataFlow, DataFlow], losses: tuple[Sequence[Value], Sequence[Value]] = ((), ())
    ) -> None:
        """Take both recordings, and what backward was called on; `exist` tells whether one has parts."""
        self._flows = flows
        self.exist = len(losses[0]) != len(losses[1]) and add_up_to_the_same(*losses)
        found = losses if self.exist else ((), ())
        self._numbers = tuple(set(_made_of(flow, own)) for flow, own in zip(flows, found, strict=True))

    def are_read_by(self, target: Call, baseline: Call) -> bool:
        """Tell whether both calls read such a number, each one of its side, or are of the backward of one that does."""
        return all(
            any(value.id in numbers for _, value in flow.reads(call.forward or call))
            for flow, numbers, call in zip(self._flows, self._numbers, (target, baseline), strict=True)
        )


def _made_of(flow: DataFlow, losses: Sequence[Value]) -> Iterator[int]:
    """Yield the ids of losses, and of the numbers that they were computed from, as far back as there are only such."""
    left, seen = list(losses), set[int]()
    while left:
        value = left.pop()
        if value.id in seen:
            continue
        seen.add(value.id)
        yield value.id
        writer = flow.writer(value)
        read = [] if writer is None else [value for _, value in flow.reads(writer[0])]
        if all(value.numel == 1 for value in read):
            left += read


def add_up_to_the_same(targets: Sequence[Value], baselines: Sequence[Value]) -> bool:
    """Tell whether the losses of both sides add up to the same, as far as their dtypes tell."""
    ours, theirs = ([_number(value) for value in side] for side in (targets, baselines))
    if not ours or not theirs or any(map(math.isnan, (*ours, *theirs))):
        return False
    coarsest = max((value.dtype for value in (*targets, *baselines)), key=lambda dtype: torch.finfo(dtype).eps)
    size = max(sum(map(abs, ours)), sum(map(abs, theirs)))
    least = Limits.of(coarsest).rel_l2 * math.sqrt(len(ours) + len(theirs)) * size
    return abs(sum(ours) - sum(theirs)) <= least


def is_the_others_sum(target: Value, baseline: Value, starts: tuple[Mapping[int, Value], Mapping[int, Value]]) -> bool:
    """Tell whether one side calls backward on a tensor and what it starts from, the other on their sum.

    Args:
        target: what the target called backward on.
        baseline: what the baseline did.
        starts: the gradients that both sides gave, by the ids of what they called backward on.
    """
    return _is_its_sum(target, starts[0].get(target.id), baseline) or _is_its_sum(
        baseline, starts[1].get(baseline.id), target
    )


def _is_its_sum(one: Value, start: Value | None, whole: Value) -> bool:
    """Tell whether a number is the sum of a tensor's elements, each times what backward on them starts from.

    ``grad(y, x, torch.ones_like(y))`` takes the gradients of ``y.sum()``.

    Args:
        one: what backward was called on, of several elements.
        start: the gradient that it was given for them.
        whole: the number that backward was called on in the other recording.
    """
    if start is None or start.shape != one.shape or whole.numel != 1:
        return False
    if not all(value.has_data and not value.undefined and value.is_floating for value in (one, start)):
        return False
    number = _number(whole)
    terms = one.tensor().double() * start.tensor().double()
    coarsest = max((one.dtype, whole.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    least = Limits.of(coarsest).rel_l2 * math.sqrt(2) * float(terms.abs().sum())
    return abs(float(terms.sum()) - number) <= least


def _number(value: Value) -> float:
    """Return what a tensor of one number holds, by its bytes or its statistics; NaN where that is not known."""
    if not value.is_floating or value.numel != 1 or value.undefined:
        return math.nan
    if value.has_data:
        return float(value.tensor().item())
    known = None if value.stats is None else value.stats.get("mean", value.stats.get("max"))
    return math.nan if known is None else float(known)
