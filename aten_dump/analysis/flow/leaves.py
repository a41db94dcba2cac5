"""Which leaves of autograd gradients are of: parameters, and other tensors that require grad and were made by no op.

Theory of operation
    ``AccumulateGrad`` does not say which leaf it is of. The backward of Python-level calls sends each gradient for one
    of their inputs. Calls that are none of Python's (``torch.ops``) are asked what they were given: a gradient that
    the backward of one made is of its input from outside, where only one of them has the gradient's shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from .data_flow import DataFlow, once_per_flow

ACCUMULATES: Final = "AccumulateGrad"


@dataclass(frozen=True, slots=True)
class LeafGradient:
    """A gradient that was accumulated into a leaf, after as many others as `turn` says."""

    leaf: Value
    gradient: Value
    turn: int


@once_per_flow
def leaf_gradients(flow: DataFlow) -> dict[int, LeafGradient]:
    """Return what was accumulated into which leaf, by id of the ``AccumulateGrad`` call, where that is known."""
    known_of = _leaves_by_gradient(flow)
    turns: Counter[int] = Counter()
    found: dict[int, LeafGradient] = {}
    for call in accumulations(flow):
        given = call.input_values()
        known = _leaves_of(given[0][1], known_of, flow) if given else {}
        if len(known) == 1:
            (leaf,) = known.values()
            found[call.id] = LeafGradient(leaf, given[0][1], turns[leaf.id])
            turns[leaf.id] += 1
    return found


def named_leaves(flow: DataFlow, found: Mapping[int, LeafGradient]) -> dict[str, Value]:
    """Return the parameters that got a gradient, by name, of what `leaf_gradients` found."""
    return {record.name: found[record.call].leaf for record in flow.rank.tables.gradients if record.call in found}


def accumulations(flow: DataFlow) -> Iterator[Call]:
    """Yield the calls that accumulate into leaves."""
    return (call for call in flow.rank.calls.filter(kind="node") if call.op.endswith(ACCUMULATES))


def _leaves_of(gradient: Value, known_of: dict[int, dict[int, Value]], flow: DataFlow) -> dict[int, Value]:
    """Return the leaves, by id, of a gradient, or of those that it was made of: a sum, what a hook made of it."""
    found: dict[int, Value] = {}
    waiting, seen = [gradient], {gradient.id}
    while waiting:
        value = waiting.pop()
        maker = flow.maker(value)
        known = known_of.get(value.id) or _leaves_of_call(maker, gradient, flow)
        if known:
            found |= known
            continue
        given = [] if maker is None or maker.phase != "backward" else [v for _, v in maker.input_values()]
        waiting += [v for v in given if v.id not in seen and v.shape == gradient.shape]
        seen |= {v.id for v in given}
    return found


def _leaves_of_call(maker: Call | None, gradient: Value, flow: DataFlow) -> dict[int, Value]:
    """Return the one leaf, by id, that a call was given whose backward made a gradient; none of Python-level calls'."""
    forward = None if maker is None or maker.phase != "backward" else maker.forward
    if forward is None or (forward.parent is not None and forward.parent.kind == "api"):
        return {}
    given = {v.id: v for _, v in forward.input_values() if v.shape == gradient.shape and v.requires_grad}
    return given if len(given) == 1 and all(flow.maker(value) is None for value in given.values()) else {}


def _leaves_by_gradient(flow: DataFlow) -> dict[int, dict[int, Value]]:
    """Return the leaves, by id, for which a gradient was sent, by its id."""
    found: dict[int, dict[int, Value]] = {}
    for gradient, value in sent(flow):
        maker = flow.maker(value)
        if maker is None or maker.sequence_nr is None:
            found.setdefault(gradient.id, {})[value.id] = value
    return found


def sent(flow: DataFlow) -> Iterator[tuple[Value, Value]]:
    """Yield the gradients that the backward of Python-level calls sent, each with the value that it was sent for."""
    for call in flow.rank.calls.filter(kind="api", phase="backward"):
        given = dict(call.forward.input_values()) if call.forward is not None else {}
        for slot, gradient in call.output_values():
            value = given.get(slot.replace("output", "input", 1))
            if value is not None:
                yield gradient, value
