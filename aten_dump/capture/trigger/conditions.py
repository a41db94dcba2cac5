"""What makes a recorder in ring mode write: told from Call records and what is known of their values.

A trigger is asked about every call, in order, once what it `needs` of the call's values has come: looks and statistics
of tensors on a device come some calls later. It reads plain records and numbers: no tensor, no wait.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import torch

from ...config import DumpConfig
from ...store.op_names import LIFT_FRESH, is_collective
from ...store.records import PHASES, TREE_COMPLEX, TREE_LIST, TREE_TUPLE, Call, Op, Tree
from ...store.write_only_inputs import read_inputs
from .held_call import HeldCall, values_in
from .nonfinite_checks import Look, Looks

Stats = Mapping[str, Any]
_Strange = list[tuple[int, Look]]  # storage, and what is to be noted of a value on it

_MASK_FILL: Final = 0.45 * torch.finfo(torch.float32).max  # -inf made of values below it is a mask that was added twice
_SPIKE: Final = 6.0  # standard deviations
_HISTORY: Final = 32  # losses
_BACKWARD: Final = ("torch.Tensor.backward", "torch.autograd.backward")
_BACKWARD_PHASE: Final = PHASES.index("backward")


class Cause(NamedTuple):
    """Why calls are to be written."""

    why: str
    kind: Hashable = None  # what counts as the same cause when it comes again; None: it never does


class Known(Protocol):
    """What is known of the values of a step."""

    @property
    def has_looks(self) -> bool:
        """Whether the look at any value has shown something to note."""

    def look(self, value: int) -> Look | None:
        """Return what the look at a value has shown, where there was something to note."""

    def stats(self, value: int) -> Stats | None:
        """Return the statistics of a value by name."""

    def awaits_stats(self, value: int) -> bool:
        """Tell whether the statistics of a value may still come."""

    def storage(self, value: int) -> int:
        """Return the storage of a value; a negative number of its own where it has none."""

    def text(self, number: int) -> str:
        """Return an interned text."""


class Trigger(Protocol):
    """Decides about one call after the other."""

    def new_looks(self) -> Looks | None:
        """Return what looks at tensors for this trigger; None where it needs no looks."""

    def begin_step(self) -> None:
        """Forget the values of the step before: their ids begin anew."""

    def awaits(self, call: HeldCall, known: Known) -> bool:
        """Tell whether it cannot decide about a call yet, although no look is pending."""

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        """Return why calls are to be written, or None."""


def make_trigger(config: DumpConfig) -> Trigger:
    """Return the trigger that a configuration asks for."""
    if config.trigger == "nonfinite":
        return NonFinite()
    return LossSpike() if config.trigger == "loss_spike" else Custom(config.trigger)


class NonFinite:
    """Tells when NaN or Inf first appear in a step: a call makes them of finite inputs, or is given them from outside.

    Infinities that are put there on purpose do not count: literals, -inf masks from outside, and what becomes of them
    as long as it is not NaN. Nor does what comes from outside when the step before had NaN or Inf: it is the same.
    """

    def __init__(self) -> None:
        self._made: set[int] = set()  # storages that a call is known to have put NaN or Inf in
        self._is_sick = False  # this step had NaN or Inf
        self._was_sick = False  # the step before had

    def new_looks(self) -> Looks:
        return Looks(lambda look: look.nan or look.infinite or look.low <= -_MASK_FILL)

    def begin_step(self) -> None:
        self._made.clear()
        self._was_sick, self._is_sick = self._is_sick, False

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return False

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        if not known.has_looks:
            return None
        made = _strange(call.results, known)
        record = call.record
        given = _strange(values_in(read_inputs(op, record)) if record.written else call.inputs, known)
        why = self._judge(record, op, made, given) if made or given else None
        self._made.update(storage for storage, _ in made)
        return None if why is None else Cause(why, (op.op, record.phase, known.text(record.module)))

    def _judge(self, call: Call, op: Op, made: _Strange, given: _Strange) -> str | None:
        outside = [look for storage, look in given if storage not in self._made]
        self._made.update(storage for storage, _ in given)
        is_constant = op.op == LIFT_FRESH and not any(look.nan or look.low != look.high for look in outside)
        bad = [look for _, look in (*made, *given) if look.nan or look.high == math.inf]
        self._is_sick = self._is_sick or bool(bad and not is_constant)
        if any(look.nan or look.high == math.inf for look in outside) and not is_constant and not self._was_sick:
            what = "NaN" if any(look.nan for look in outside) else "Inf"
            return f"{op.op} was given {what} that no recorded call has made: a parameter, a buffer or an input"
        if any(look.nan for _, look in given):
            return None
        how = "brought" if is_collective(op.op) else "made"
        where = " in backward" if call.phase == _BACKWARD_PHASE else ""
        if any(look.nan for _, look in made):
            return f"{op.op} {how} NaN{where}"
        infinite = [look for _, look in made if look.infinite]
        if not infinite or any(look.infinite for _, look in given) or _names_infinity(call):
            return None
        only_low = not any(look.high == math.inf for look in infinite)
        if only_low and any(look.low <= -_MASK_FILL for _, look in given):
            return None
        return f"{op.op} {how} Inf{where}"


class LossSpike:
    """Tells when the tensor that backward is called on is far above what it was before, or is not finite."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_HISTORY)

    def new_looks(self) -> Looks:
        return Looks(lambda look: True, most_elements=1)

    def begin_step(self) -> None:
        pass

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return False

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        if op.op not in _BACKWARD or call.record.forward:
            return None
        look = known.look(call.inputs[0]) if call.inputs else None
        if look is None:
            return None
        if not math.isfinite(look.high):
            return Cause(f"the loss is {look.high}", "not finite")
        text = self._judge(look.high)
        self._losses.append(look.high)
        return None if text is None else Cause(text)

    def _judge(self, loss: float) -> str | None:
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

    def new_looks(self) -> None:
        return None

    def begin_step(self) -> None:
        pass

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return any(known.awaits_stats(value) for value in call.results)

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        found = [dict(s) for value in call.results if (s := known.stats(value))]
        return Cause(f"the trigger said so at {op.op}") if self._asked(op.op, found) else None


def _strange(values: list[int], known: Known) -> _Strange:
    return [(known.storage(value), look) for value in values if (look := known.look(value)) is not None]


def _names_infinity(call: Call) -> bool:
    return any(_is_odd(tree) for tree in (*call.args, *(call.kwargs or {}).values()))


def _is_odd(tree: Tree) -> bool:
    if isinstance(tree, float):
        return not math.isfinite(tree)
    if isinstance(tree, (list, tuple)) and tree[0] in (TREE_LIST, TREE_TUPLE, TREE_COMPLEX):
        return any(_is_odd(item) for item in tree[1:])
    return False
