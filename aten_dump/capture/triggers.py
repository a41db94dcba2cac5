"""What makes a recorder in ring mode write: told from the Call records and the statistics of their values.

A trigger is asked about every call once the statistics of its results are known. It reads plain records, so it costs
no tensor op and no wait for a device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import torch

from ..config import DumpConfig
from ..store.records import TREE_COMPLEX, TREE_DICT, TREE_LIST, TREE_TUPLE, TREE_VALUE, Call, Op, Tree

Stats = Mapping[str, Any]
StatsOf = Callable[[int], Stats | None]

_MASK_FILL: Final = 0.45 * torch.finfo(torch.float32).max  # -inf made of values below it is a mask that was added twice
_SPIKE: Final = 6.0  # standard deviations
_HISTORY: Final = 32  # losses
_BACKWARD: Final = ("torch.Tensor.backward", "torch.autograd.backward")


class Trigger(Protocol):
    """Decides about one call after the other; returns why to write, or None."""

    def __call__(self, call: Call, op: Op, stats: StatsOf) -> str | None: ...


def make_trigger(config: DumpConfig) -> Trigger:
    """Return the trigger that a configuration asks for."""
    if config.trigger == "nonfinite":
        return nonfinite
    return LossSpike() if config.trigger == "loss_spike" else Custom(config.trigger)


def nonfinite(call: Call, op: Op, stats: StatsOf) -> str | None:
    """Tell whether a call made NaN or Inf of finite inputs; masks that are put there on purpose do not count."""
    made = [found for value in results_of(call) if (found := stats(value))]
    nan = any(found.get("nan") for found in made)
    infinite = any(found.get("posinf") or found.get("neginf") for found in made)
    if not (nan or infinite):
        return None
    given = [found for value in inputs_of(call) if (found := stats(value))]
    if any(found.get("nan") for found in given):
        return None
    if nan:
        return f"{op.op} made NaN"
    if any(found.get("posinf") or found.get("neginf") for found in given) or _names_infinity(call):
        return None
    only_low = not any(found.get("posinf") for found in made)
    if only_low and any((found.get("min") or 0.0) <= -_MASK_FILL for found in given):
        return None
    return f"{op.op} made Inf"


class LossSpike:
    """Tells when the tensor that backward is called on is far above what it was before, or is not finite."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_HISTORY)

    def __call__(self, call: Call, op: Op, stats: StatsOf) -> str | None:
        if op.op not in _BACKWARD or call.forward:
            return None
        found = stats(next(iter(inputs_of(call)), 0))
        loss = None if found is None else found.get("max")
        if loss is None:
            return None
        text = self._judge(float(loss))
        if math.isfinite(loss):
            self._losses.append(float(loss))
        return text

    def _judge(self, loss: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        count = len(self._losses)
        if count < 5:
            return None
        mean = sum(self._losses) / count
        spread = math.sqrt(sum((x - mean) ** 2 for x in self._losses) / (count - 1))
        limit = mean + _SPIKE * max(spread, 0.01 * abs(mean))
        return f"the loss is {loss:.6g}, the last {count} were about {mean:.6g}" if loss > limit else None


class Custom:
    """Asks a function of the user's, with the op's name and the statistics of its results."""

    def __init__(self, asked: Any) -> None:
        self._asked = asked

    def __call__(self, call: Call, op: Op, stats: StatsOf) -> str | None:
        found = [dict(s) for value in results_of(call) if (s := stats(value))]
        return f"the trigger said so at {op.op}" if self._asked(op.op, found) else None


def inputs_of(call: Call) -> Iterator[int]:
    """Yield the value ids of the arguments."""
    for tree in (*call.args, *(call.kwargs or {}).values()):
        yield from values_of(tree)


def results_of(call: Call) -> Iterator[int]:
    """Yield the value ids of what a call returned and wrote."""
    yield from values_of(call.outputs)
    for tree in (call.written or [])[1::2]:
        yield from values_of(tree)


def values_of(tree: Tree) -> Iterator[int]:
    """Yield the value ids of a tree."""
    if not isinstance(tree, (list, tuple)):
        return
    if tree[0] == TREE_VALUE:
        yield tree[1]
    elif tree[0] in (TREE_LIST, TREE_TUPLE):
        for item in tree[1:]:
            yield from values_of(item)
    elif tree[0] == TREE_DICT:
        for item in tree[2::2]:
            yield from values_of(item)


def _names_infinity(call: Call) -> bool:
    return any(_is_odd(tree) for tree in (*call.args, *(call.kwargs or {}).values()))


def _is_odd(tree: Tree) -> bool:
    if isinstance(tree, float):
        return not math.isfinite(tree)
    if isinstance(tree, (list, tuple)) and tree[0] in (TREE_LIST, TREE_TUPLE, TREE_COMPLEX):
        return any(_is_odd(item) for item in tree[1:])
    return False
