"""Which call of two regions is the odd one: the one that most likely is the reason that they do not mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from ...dump import Call, Value
from ...store.op_names import read_op_name
from .cones import Cone
from .counterparts import Counterparts, Side
from .data_flow import DataFlow

_MOVES: Final = frozenset(("clone", "copy_", "_to_copy", "zeros", "zeros_like", "npu_change_data_ptr"))


def odd_call(cones: tuple[Cone, Cone], flows: tuple[DataFlow, DataFlow], known: Counterparts) -> tuple[Call, int]:
    """Return a call that the other side lacks, and the side that it is on.

    Calls that compute come before views and what only moves elements, those whose op the other side lacks before those
    whose arguments it lacks, the target's before the baseline's, and of several the last. If all are there on both
    sides, it is the first that is given something else.
    """
    computing, showing = (
        [
            [call for call in cone.calls if (flow.is_view(call) or _only_moves(call)) == shows]
            for cone, flow in zip(cones, flows, strict=True)
        ]
        for shows in (False, True)
    )
    for calls in (computing, showing):
        for key in (_op, _op_and_arguments):
            for side in (0, 1):
                odd = _alone(key, calls[side], calls[1 - side])
                if odd:
                    ops = {call.op for call in odd}
                    exact = [c for c in _alone(_op_and_arguments, calls[side], calls[1 - side]) if c.op in ops]
                    return (exact or odd)[-1], side
    first = 0 if cones[0].pieces else 1
    wired = _wired(0, cones[0], flows[0], known) | _wired(1, cones[1], flows[1], known)
    odd = _alone(lambda call: wired[id(call.rank), call.id], cones[first].calls, cones[1 - first].calls)
    return (odd[0] if odd else cones[first].calls[-1]), first


def _only_moves(call: Call) -> bool:
    """Tell whether a call leaves elements as they are: a copy in one dtype, zeros, other memory for a tensor."""
    return read_op_name(call.op).name in _MOVES and len({value.dtype_name for _, value in call.all_values()}) == 1


def _alone(key: Callable[[Call], Hashable], calls: Sequence[Call], others: Sequence[Call]) -> list[Call]:
    """Return the calls whose keys the others do not have as often."""
    left = Counter(map(key, others))
    found = []
    for call in calls:
        if left[key(call)]:
            left[key(call)] -= 1
        else:
            found.append(call)
    return found


def _wired(side: Side, cone: Cone, flow: DataFlow, known: Counterparts) -> dict[tuple[int, int], Hashable]:
    """Return what each call of a cone computes, and of what, so that equal ones of two sides are told."""
    found: dict[int, Hashable] = {}
    for call in cone.calls:
        given: list[Hashable] = [_op_and_arguments(call)]
        for _, value in call.input_values():
            maker = flow.maker(value)
            if maker is not None and maker.id in found:
                given.append((found[maker.id], flow.slot_of(maker, value)))
            else:
                given.append(known.class_of(side, value))
        found[call.id] = hash(tuple(given))
    return {(id(flow.rank), number): key for number, key in found.items()}


def _op(call: Call) -> Hashable:
    return call.op


def _op_and_arguments(call: Call) -> Hashable:
    args, kwargs = call.inputs
    return call.op, repr([_literals(item) for item in (*args, *kwargs.values())])


def _literals(item: object) -> object:
    if isinstance(item, Value):
        return "tensor"
    return [_literals(entry) for entry in item] if isinstance(item, (list, tuple)) else item
