"""What is asked of autograd's engine on the path of every op, by names that say what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

is_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
running_node: Final[Callable[[], Any]] = torch._C._current_autograd_node  # None outside of a backward pass
TELLS_TOP_SAVED_HOOKS: Final = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
# The innermost saved-tensor hooks; None without any, and of an older torch, which cannot be asked.
top_saved_hooks: Final[Callable[[bool], Any]] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None
)
ACCUMULATE_GRAD: Final = 2**64 - 1  # the sequence number of nodes that accumulate into a leaf


def queue_callback(action: Callable[[], None]) -> None:
    """Have `action` called when the engine has run the last node of the backward pass under way."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
