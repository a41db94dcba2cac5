"""Hooks on modules: whether some may replace the arguments of a call, and the class that torch's own are built on."""

from __future__ import annotations

from torch import nn
from torch.nn.modules._functions import BackwardHookFunction as BackwardHookFunction
from torch.nn.modules.module import _global_forward_pre_hooks


def may_replace_arguments(module: nn.Module) -> bool:
    """Tell whether forward pre-hooks may replace the arguments of this module's next call."""
    own = vars(module).get("_forward_pre_hooks")
    return own is not None and bool(own or _global_forward_pre_hooks) and module._compiled_call_impl is None
