"""What a step knows of each op: how to record it, and the numbers of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..naming.interned_tables import Interner
from ..naming.op_schemas import OpPlan, plan_of
from ..step.call_counters import CallCounters, Counter
from ..torch_internals.engine import function_of
from ..torch_internals.mode_stack import DETACH


class OpEntry:
    """What a step knows of one op."""

    __slots__ = (
        "copies",
        "counter",
        "func",
        "is_detach",
        "is_simple",
        "locate",
        "may_be_ahead",
        "number",
        "plan",
        "run",
    )

    def __init__(self, func: Any, plan: OpPlan, counter: Counter, is_simple: bool) -> None:
        self.func = func  # keeps its id, under which this is found: hashing an OpOverload costs more
        self.run = function_of(func)
        self.plan = plan
        self.counter = counter
        self.is_simple = is_simple  # `PendingOp` does for it
        # Of the plan, and asked of each call.
        self.copies = plan.copies
        self.may_be_ahead = plan.may_be_ahead
        self.is_detach = func is DETACH
        self.locate: Callable[[Any, Interner], None] | None = None  # says where a compiled kernel belongs
        self.number = 0  # Op id; 0 as long as none of its calls is recorded


def new_entry(func: Any, counters: CallCounters, keeps_random_states: bool) -> OpEntry:
    """Return the entry of an op that is new to a step."""
    plan = plan_of(func)
    is_simple = plan.name.prefix == "Aten" and not (  # other kernels may write more than their schemas say
        plan.writes
        or plan.collective
        or plan.undefined_output
        or plan.is_question
        or plan.is_higher_order
        or (plan.random and keeps_random_states)
    )
    return OpEntry(func, plan, counters.of(plan.name), is_simple)
