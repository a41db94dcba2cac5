"""How torch runs modules: where `forward` is called, whether hooks may replace arguments, their own class."""

from __future__ import annotations

from typing import Any, Final

from torch import nn
from torch.nn.modules._functions import BackwardHookFunction as BackwardHookFunction
from torch.nn.modules.module import _global_forward_pre_hooks

# The code whose frame is around that of `forward`, but where a module has hooks.
CALLS_FORWARD: Final[Any] = getattr(nn.Module._call_impl, "__code__", None)


def may_replace_arguments(module: nn.Module) -> bool:
    """Return True if forward pre-hooks may replace the arguments of this module's next call."""
    own = vars(module).get("_forward_pre_hooks")
    return own is not None and bool(own or _global_forward_pre_hooks) and module._compiled_call_impl is None
