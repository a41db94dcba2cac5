"""What is asked of autograd and of the dispatcher on the path of every op, by names that say what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._ops import OpOverload

# -- autograd
is_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
get_sequence_nr: Final[Callable[[], int]] = torch._C._autograd._get_sequence_nr  # of the next node made here
running_node: Final[Callable[[], Any]] = torch._C._current_autograd_node  # None outside of a backward pass
current_graph_task_id: Final[Callable[[], int]] = torch._C._current_graph_task_id  # -1 outside of a backward pass
TELLS_TOP_SAVED_HOOKS: Final = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
# The innermost saved-tensor hooks; None without any, and of an older torch, which cannot be asked.
top_saved_hooks: Final[Callable[[bool], Any]] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None
)
ACCUMULATE_GRAD: Final = 2**64 - 1  # the sequence number of nodes that accumulate into a leaf

# -- modes and tracing
len_dispatch_stack: Final[Callable[[], int]] = torch._C._len_torch_dispatch_stack
dispatch_mode_at: Final[Callable[[int], Any]] = torch._C._get_dispatch_stack_at
is_jit_tracing: Final[Callable[[], bool]] = torch._C._is_tracing  # torch.jit.trace is at work

NativeFuture: Final[Any] = torch._C.Future  # what C++ hands out, below torch.futures.Future

# -- tensors
is_functional_tensor: Final[Callable[[torch.Tensor], bool]] = torch._is_functional_tensor
is_functorch_wrapper: Final[Callable[[torch.Tensor], bool]] = torch._C._functorch.is_functorch_wrapped_tensor
negative_view: Final[Callable[[torch.Tensor], torch.Tensor]] = torch._neg_view
DISABLED_DISPATCH: Final[Any] = torch._C._disabled_torch_dispatch_impl  # a class without a dispatch of its own


def parts_of(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Return the addresses of a tensor's TensorImpl and StorageImpl, its set of dispatch keys, its storage's bytes."""
    storage = tensor.untyped_storage()
    return tensor._cdata, storage._cdata, torch._C._dispatch_keys(tensor).raw_repr(), storage.nbytes()


_TORCHS_CALL: Final[Any] = OpOverload.__call__
_CODE: Final[Any] = getattr(_TORCHS_CALL, "__code__", None)
_HANDS_ON: Final = _CODE is not None and _CODE.co_names == ("_op",)  # the arguments, as they are


def function_of(op: Any) -> Any:
    """Return what to call to run an op: where its class only hands the arguments on, that which takes them."""
    kind = type(op)
    return op._op if _HANDS_ON and kind is OpOverload and kind.__call__ is _TORCHS_CALL else op


def queue_callback(action: Callable[[], None]) -> None:
    """Have `action` called when the engine has run the last node of the backward pass under way."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
