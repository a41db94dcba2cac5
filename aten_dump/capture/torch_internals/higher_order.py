"""Higher-order operators (cond, flex_attention, ...) that reach a dispatch mode.

Theory of operation
    A mode says ``supports_higher_order_operators``, and then ``__torch_dispatch__`` is called with such operators as
    with ops. An older torch wants a rule for each pair of operator and mode instead, and raises without one. While a
    step is recorded, `HigherOrderRules` adds that rule to each operator that meets a mode of the recorder.
"""

from __future__ import annotations

from typing import Any, Final

from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ..interrupts import runs_program
from .patches import Patch

NEEDS_RULES: Final = not hasattr(TorchDispatchMode, "supports_higher_order_operators")


class HigherOrderRules:
    """Lets a mode see higher-order operators; does nothing where torch does it."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode
        self._patch: Patch | None = None

    def install(self) -> None:
        """Begin to give rules."""
        if not NEEDS_RULES or self._patch is not None:
            return
        mode, kind = self._mode, type(self._mode)
        original: Any = HigherOrderOperator.dispatch

        @runs_program
        def dispatch(self: Any, dispatch_key: Any, /, *args: Any, **kwargs: Any) -> Any:
            is_new = dispatch_key == DispatchKey.Python and kind not in self.python_key_table
            if is_new and _get_current_dispatch_mode() is mode:
                self.py_impl(kind)(_rule_of(self))
            return original(self, dispatch_key, *args, **kwargs)

        self._patch = Patch(HigherOrderOperator, "dispatch", dispatch)

    def remove(self) -> None:
        """Give none any more."""
        if self._patch is not None and self._patch.undo():
            self._patch = None


def kernel_of(operator: Any) -> Any:
    """Return the function that runs an operator's body as the program wrote it; None of one without."""
    return getattr(operator, "py_kernels", {}).get(DispatchKey.CompositeExplicitAutograd)


def _rule_of(operator: Any) -> Any:
    def rule(mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
        return mode.__torch_dispatch__(operator, (), args, kwargs)

    return rule
