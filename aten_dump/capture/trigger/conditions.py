"""What makes a recorder in ring mode write, decided from Call records and what is known of their values.

A trigger is asked about every call, in order, once what it `needs` of the call's values has come: extremes and
statistics of tensors on a device come some calls later. It reads plain records and numbers: no tensor, no wait.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import torch

from ...config import DumpConfig
from ...errors import CaptureError
from ...store.op_names import LIFT_FRESH, is_collective, is_workspace, read_inputs, reads_no_elements
from ...store.records import PHASES, TREE_COMPLEX, Call, Op, Tree
from ..values.encoded_trees import entries, values_in
from .held_call import HeldCall
from .held_step import HeldStep
from .held_values import Stats
from .measured.extremes import Extremes, ExtremesOfValues
from .measured.overflow_registers import FoundSet, OverflowRegisters

_Strange = list[tuple[int, Extremes]]  # storage, and what is to be noted of a value on it

_MASK_FILL: Final = 0.45 * torch.finfo(torch.float32).max  # -inf made of values below it is a mask that was added twice
_SPIKE: Final = 6.0  # standard deviations
_HISTORY: Final = 32  # losses
_BACKWARD: Final = ("torch.Tensor.backward", "torch.autograd.backward")
_BACKWARD_PHASE: Final = PHASES.index("backward")


class Cause(NamedTuple):
    """Why calls are to be written."""

    why: str
    kind: Hashable = None  # what counts as the same cause when it comes again; None: it never does


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the values of a step."""

    step: HeldStep
    all_extremes: ExtremesOfValues | None
    registers: OverflowRegisters | None

    @property
    def has_extremes(self) -> bool:
        """True if the extremes of any value are notable."""
        return self.all_extremes is not None and self.all_extremes.has_notable

    @property
    def has_undefined(self) -> bool:
        """True if a value is memory that nothing had written."""
        return self.step.values.has_undefined

    def is_undefined(self, value: int) -> bool:
        """Return True if a value is."""
        return self.step.values.is_undefined(value)

    def extremes(self, value: int) -> Extremes | None:
        """Return the extremes of a value, where they are notable."""
        return None if self.all_extremes is None else self.all_extremes.get(value)

    def stats(self, value: int) -> Stats | None:
        """Return the statistics of a value by name."""
        return self.step.values.stats(value)

    def awaits_stats(self, value: int) -> bool:
        """Return True if the statistics of a value may still come."""
        return self.step.values.awaits_stats(value)

    def storage(self, value: int) -> int:
        """Return the storage of a value; a negative number of its own where it has none."""
        return self.step.values.storage(value)

    def register_set(self, call: HeldCall) -> FoundSet | None:
        """Return which device's overflow register was set after this call, and not before."""
        return None if self.registers is None else self.registers.found_at(call.position)

    def text(self, number: int) -> str:
        """Return an interned text."""
        return self.step.tables.text(number)


class Trigger(Protocol):
    """Decides about one call after the other."""

    reads_registers: bool  # of devices that saturate, instead of extremes

    def new_extremes(self) -> ExtremesOfValues | None:
        """Return what measures tensors for this trigger; None where it needs no extremes."""

    def begin_step(self) -> None:
        """Forget the values of the step before: their ids begin anew."""

    def awaits(self, call: HeldCall, known: Known) -> bool:
        """Return True if it cannot decide about a call yet, although no extremes are pending."""

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        """Return why calls are to be written, or None."""


def make_trigger(config: DumpConfig) -> Trigger:
    """Return the trigger that a configuration asks for."""
    if config.trigger == "nonfinite":
        return NonFinite()
    return LossSpike() if config.trigger == "loss_spike" else Custom(config.trigger)


class NonFinite:
    """Finds when NaN or Inf first appear in a step: a call makes them from finite inputs, or reads them from before it.

    Infinities that are put there on purpose do not count: literals, -inf masks from outside, and what becomes of them
    as long as it is not NaN. Nor does what comes from outside when the step before had NaN or Inf: it is the same.
    What is computed from memory that nothing had written means nothing (pipeline schedules infer shapes so).
    Devices that saturate make neither NaN nor Inf: their overflow registers are read.
    """

    reads_registers = True

    def __init__(self) -> None:
        self._made: set[int] = set()  # storages that a call is known to have put NaN or Inf in
        self._meaningless: set[int] = set()  # storages with what was computed from undefined memory
        self._workspaces: set[int] = set()  # storages of workspaces
        self._is_sick = False  # this step had NaN or Inf
        self._was_sick = False  # the step before had

    def new_extremes(self) -> ExtremesOfValues:
        return ExtremesOfValues(lambda found: found.nan or found.infinite or found.low <= -_MASK_FILL)

    def begin_step(self) -> None:
        self._made.clear()
        self._meaningless.clear()
        self._workspaces.clear()
        self._was_sick, self._is_sick = self._is_sick, False

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return False

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        record = call.record
        found = known.register_set(call)
        if found is not None:
            return Cause(_of_register(found, op, record), (op.op, record.phase, known.text(record.module)))
        if not known.has_extremes and not known.has_undefined:
            return None
        read = [] if reads_no_elements(op.op) else call.inputs
        if read and record.written:
            read = values_in(read_inputs(op, record))
        if known.has_undefined and self._spread(read, call.results, known):
            return None
        workspaces = workspaces_of(record, op)
        self._workspaces.update(map(known.storage, workspaces))
        made = _strange([value for value in call.results if value not in workspaces], known)
        given = _strange([value for value in read if known.storage(value) not in self._workspaces], known)
        why = self._judge(record, op, made, given) if made or given else None
        self._made.update(storage for storage, _ in made)
        return None if why is None else Cause(why, (op.op, record.phase, known.text(record.module)))

    def _spread(self, read: Sequence[int], results: Sequence[int], known: Known) -> bool:
        """Note which storages hold what means nothing; return True if the results of this call do."""
        storages = {known.storage(value) for value in results}
        if any(known.is_undefined(value) or known.storage(value) in self._meaningless for value in read):
            self._meaningless |= storages
            return True
        self._meaningless -= storages
        return False

    def _judge(self, call: Call, op: Op, made: _Strange, given: _Strange) -> str | None:
        outside = [found for storage, found in given if storage not in self._made]
        self._made.update(storage for storage, _ in given)
        is_constant = op.op == LIFT_FRESH and not any(found.nan or found.low != found.high for found in outside)
        bad = [found for _, found in (*made, *given) if found.nan or found.high == math.inf]
        self._is_sick = self._is_sick or bool(bad and not is_constant)
        if any(found.nan or found.high == math.inf for found in outside) and not is_constant and not self._was_sick:
            what = "NaN" if any(found.nan for found in outside) else "Inf"
            return f"{op.op} was given {what} that no recorded call has made: a parameter, a buffer or an input"
        if any(found.nan for _, found in given):
            return None
        how = "brought" if is_collective(op.op) else "made"
        where = " in backward" if call.phase == _BACKWARD_PHASE else ""
        if any(found.nan for _, found in made):
            return f"{op.op} {how} NaN{where}"
        infinite = [found for _, found in made if found.infinite]
        if not infinite or any(found.infinite for _, found in given) or _names_infinity(call):
            return None
        only_low = not any(found.high == math.inf for found in infinite)
        if only_low and any(found.low <= -_MASK_FILL for _, found in given):
            return None
        return f"{op.op} {how} Inf{where}"


class LossSpike:
    """Fires when the tensor on which backward is called is far above its earlier values, or is not finite."""

    reads_registers = False

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_HISTORY)

    def new_extremes(self) -> ExtremesOfValues:
        return ExtremesOfValues(lambda found: True, most_elements=1)

    def begin_step(self) -> None:
        pass

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return False

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        if op.op not in _BACKWARD or call.record.forward:
            return None
        found = known.extremes(call.inputs[0]) if call.inputs else None
        if found is None:
            return None
        loss = found.high  # of its one element
        if not math.isfinite(loss):
            return Cause(f"the loss is {loss}", "not finite")
        text = self._judge(loss)
        self._losses.append(loss)
        return None if text is None else Cause(text)

    def _judge(self, loss: float) -> str | None:
        count = len(self._losses)
        if count < 5:
            return None
        mean = sum(self._losses) / count
        spread = math.hypot(*(x - mean for x in self._losses)) / math.sqrt(count - 1)
        limit = mean + _SPIKE * max(spread, 0.01 * abs(mean))
        return f"the loss is {loss:.6g}, the last {count} were about {mean:.6g}" if loss > limit else None


class Custom:
    """Asks a function of the user's, with the op's name and the statistics of its results."""

    reads_registers = False

    def __init__(self, asked: Any) -> None:
        self._asked = asked

    def new_extremes(self) -> None:
        return None

    def begin_step(self) -> None:
        pass

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return any(known.awaits_stats(value) for value in call.results)

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        found = [dict(s) for value in call.results if (s := known.stats(value))]
        try:
            fires = bool(self._asked(op.op, found))
        except Exception as error:
            raise CaptureError(
                f"the function that DumpConfig.trigger names raised {type(error).__name__} at {op.op}: {error}; it is "
                "called with the op's name and a list with the statistics of each result, and returns True or False"
            ) from error
        return Cause(f"the trigger said so at {op.op}") if fires else None


def _of_register(found: FoundSet, op: Op, call: Call) -> str:
    where = " in backward" if call.phase == _BACKWARD_PHASE else ""
    if not found.was_clear:
        return f"the overflow register of {found.device} was set by {op.op}{where} or by what ran before it, unrecorded"
    return f"{op.op} set the overflow register of {found.device}{where}: it saturates, and no value shows that"


def _strange(values: list[int], known: Known) -> _Strange:
    return [(known.storage(value), found) for value in values if (found := known.extremes(value)) is not None]


def workspaces_of(call: Call, op: Op) -> list[int]:
    """Return which results of a call are workspaces."""
    outputs = [tree for place, tree in entries(call.outputs) if is_workspace(op.op, f"output.{place}")]
    written = call.written or []
    named = zip(written[::2], written[1::2], strict=True)
    return values_in([*outputs, *(tree for name, tree in named if is_workspace(op.op, f"mutated.{name}"))])


def _names_infinity(call: Call) -> bool:
    return any(_is_odd(tree) for tree in (*call.args, *(call.kwargs or {}).values()))


def _is_odd(tree: Tree) -> bool:
    if isinstance(tree, float):
        return not math.isfinite(tree)
    if isinstance(tree, tuple) and tree[0] == TREE_COMPLEX:
        return any(map(_is_odd, tree[1:]))
    return any(_is_odd(entry) for _, entry in entries(tree))
