"""Which calls the trigger fires at: it is asked about each, in order, when what it needs to know has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import torch

from ..memory.storages import StorageState
from .conditions import Cause, Known, Trigger
from .held_call import HeldCall
from .held_step import HeldStep
from .measured.overflow_registers import OverflowRegisters

_MOST_UNDECIDED: Final = 4096  # calls whose statistics have not come; the oldest is then decided without
Decided = tuple[HeldCall, Cause]


class Decisions:
    """The calls of the step in progress that the trigger was not asked about yet."""

    def __init__(self, trigger: Trigger, most_bytes: int, in_order: bool = False) -> None:
        """Begin.

        Args:
            trigger: is asked.
            in_order: a call that waits holds up those after it; else they pass it.
            most_bytes: that are held; undecided calls may not let more than a quarter of them go.
        """
        self._trigger = trigger
        self._most_bytes = most_bytes
        self._in_order = in_order
        self._extremes = trigger.new_extremes()
        self._registers = OverflowRegisters() if trigger.reads_registers else None
        self._measured = [one for one in (self._extremes, self._registers) if one is not None]
        self._undecided: deque[HeldCall] = deque()
        self._step: HeldStep
        self._known: Known
        self._facts = 0  # statistics that were known when undecided calls were looked through last
        self._copied_bytes = 0  # when the extremes were collected last

    def begin_step(self, step: HeldStep) -> None:
        """Begin a step."""
        self._step = step
        self._known = Known(step, self._extremes, self._registers)
        self._trigger.begin_step()
        for one in self._measured:
            one.begin_step()

    @property
    def wants_tensors(self) -> bool:
        """True if it is to be shown every tensor."""
        return self._extremes is not None

    def see(self, tensor: torch.Tensor, value: int, storage: StorageState) -> None:
        """Take a tensor of a call that has not ended: measure it, or what its device says of all that it computes."""
        if self._registers is not None and self._registers.touch(tensor.device):
            return
        if self._extremes is not None:
            self._extremes.measure(tensor, value, storage)

    def oldest_undecided(self, newest: int) -> int:
        """Return the position of the oldest undecided call; `newest` where there is none."""
        return self._undecided[0].position if self._undecided else newest

    def on_call(self, call: HeldCall, copied_bytes: int) -> Iterator[Decided]:
        """Take a call that has ended; yield calls at which the trigger fires.

        Args:
            call: the call.
            copied_bytes: bytes of tensors that were copied so far.
        """
        measured = self._measured
        if self._registers is not None:
            self._registers.call_ended(call.position)
        if measured and not any(measured) and not self._undecided:  # as ever on the CPU
            yield from self._ask(call)
            return
        self._undecided.append(call)
        if any(measured):
            is_due = any(one.is_due for one in measured)
            if not is_due and copied_bytes - self._copied_bytes < self._most_bytes // 4:
                return
            self._collect(copied_bytes)
        if not measured:
            if self._step.values.fact_count == self._facts and len(self._undecided) <= _MOST_UNDECIDED:
                return  # nothing new is known
            self._facts = self._step.values.fact_count
        yield from self._decide(all_of_them=False)

    def at_the_end(self, copied_bytes: int) -> Iterator[Decided]:
        """Decide about all calls that are left; yield those at which the trigger fires."""
        self._collect(copied_bytes)
        yield from self._decide(all_of_them=True)

    def _collect(self, copied_bytes: int) -> None:
        self._copied_bytes = copied_bytes
        for one in self._measured:
            one.collect()

    def _decide(self, all_of_them: bool) -> Iterator[Decided]:
        late: deque[HeldCall] = deque()
        waiting = self._undecided
        while waiting:
            may_wait = not all_of_them and len(waiting) + len(late) <= _MOST_UNDECIDED
            if not may_wait or not self._trigger.awaits(waiting[0], self._known):
                yield from self._ask(waiting.popleft())
            elif self._in_order:
                return
            else:
                late.append(waiting.popleft())
        self._undecided = late

    def _ask(self, call: HeldCall) -> Iterator[Decided]:
        cause = self._trigger(call, self._step.tables.op(call.record.op), self._known)
        if cause is not None:
            yield call, cause
