"""Higher-order operators reach a mode of ours with every torch, and torch is left as it was."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator

from aten_dump.capture.torch_internals.higher_order import NEEDS_RULES, HigherOrderRules
from aten_dump.capture.torch_internals.mode_stack import push_dispatch_mode, take_dispatch_mode_off
from tests.capture.intercept.modes import Passing


class Ours(Passing):
    """Sees operators, and computes what they would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func.name())
        return args[1](*args[3]) if func.name() == "cond" else func(*args, **(kwargs or {}))


def test_an_operator_reaches_our_mode() -> None:
    mode, x = Ours(), torch.ones(2)
    rules, before = HigherOrderRules(mode), HigherOrderOperator.dispatch
    rules.install()
    rules.install()
    assert (HigherOrderOperator.dispatch is not before) is NEEDS_RULES
    push_dispatch_mode(mode)
    try:
        result = torch.ops.higher_order.cond(True, lambda y: y + 1, lambda y: y - 1, (x,))
    finally:
        take_dispatch_mode_off(mode)
        rules.remove()
    assert result.tolist() == [2, 2] and mode.ops[0] == "cond"
    assert HigherOrderOperator.dispatch is before
    rules.remove()
