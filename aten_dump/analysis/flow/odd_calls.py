"""Which call of two regions is the odd one: the one that most likely is the reason that they do not mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from ...dump import Call, Value
from .data_flow import DataFlow
from .regions import Cone


def odd_call(cones: tuple[Cone, Cone], flows: tuple[DataFlow, DataFlow]) -> tuple[Call, int]:
    """Return a call that the other side lacks, and the side that it is on.

    Calls that compute come before views, those whose op the other side lacks before those whose arguments it lacks,
    the target's before the baseline's, and of several the last.
    """
    computing = [
        [call for call in cone.calls if not flow.is_view(call)] for cone, flow in zip(cones, flows, strict=True)
    ]
    views = [[call for call in cone.calls if flow.is_view(call)] for cone, flow in zip(cones, flows, strict=True)]
    for calls in (computing, views):
        for key in (_op, _op_and_arguments):
            for side in (0, 1):
                odd = _alone([(key(call), call) for call in calls[side]], [key(call) for call in calls[1 - side]])
                if odd:
                    return odd[-1], side
    side = 0 if cones[0].pieces else 1
    return cones[side].calls[-1], side


def _alone(calls: Sequence[tuple[Hashable, Call]], others: Sequence[Hashable]) -> list[Call]:
    """Return the calls whose keys the others do not have as often."""
    left = Counter(others)
    found = []
    for key, call in calls:
        if left[key]:
            left[key] -= 1
        else:
            found.append(call)
    return found


def _op(call: Call) -> Hashable:
    return call.op


def _op_and_arguments(call: Call) -> Hashable:
    args, kwargs = call.inputs
    return call.op, repr([_literals(item) for item in (*args, *kwargs.values())])


def _literals(item: object) -> object:
    if isinstance(item, Value):
        return "tensor"
    return [_literals(entry) for entry in item] if isinstance(item, (list, tuple)) else item
