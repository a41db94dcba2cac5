"""What is asked of autograd and of the dispatcher on the path of every op, by names that say what it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import OpOverload

from .addresses import address_of_storage, is_copy_on_write

# -- autograd
is_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
get_sequence_nr: Final[Callable[[], int]] = torch._C._autograd._get_sequence_nr  # of the next node made here
running_node: Final[Callable[[], Any]] = torch._C._current_autograd_node  # None outside of a backward pass
current_graph_task_id: Final[Callable[[], int]] = torch._C._current_graph_task_id  # -1 outside of a backward pass
SHOWS_TOP_SAVED_HOOKS: Final = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
# The innermost saved-tensor hooks; None without any, and of an older torch, which cannot be asked.
top_saved_hooks: Final[Callable[[bool], Any]] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None
)
ACCUMULATE_GRAD: Final = 2**64 - 1  # the sequence number of nodes that accumulate into a leaf


def node_of(tensor: torch.Tensor) -> Any:
    """Return the autograd node that made a tensor; None if its class answers with something that is no node."""
    try:
        node: Any = tensor.grad_fn
        return node if node is None or isinstance(node.metadata, dict) else None
    except Exception:  # noqa: BLE001 - a class of the program's, with a property of that name
        return None


# -- modes and tracing
len_dispatch_stack: Final[Callable[[], int]] = torch._C._len_torch_dispatch_stack
dispatch_mode_at: Final[Callable[[int], Any]] = torch._C._get_dispatch_stack_at
is_jit_tracing: Final[Callable[[], bool]] = torch._C._is_tracing  # torch.jit.trace is at work

NativeFuture: Final[Any] = torch._C.Future  # what C++ hands out, below torch.futures.Future

# -- tensors
is_functional_tensor: Final[Callable[[torch.Tensor], bool]] = torch._is_functional_tensor
has_storage: Final[Callable[[torch.Tensor], bool]] = torch._C._has_storage
is_functorch_wrapper: Final[Callable[[torch.Tensor], bool]] = torch._C._functorch.is_functorch_wrapped_tensor
negative_view: Final[Callable[[torch.Tensor], torch.Tensor]] = torch._neg_view
DISABLED_DISPATCH: Final[Any] = torch._C._disabled_torch_dispatch_impl  # a class without a dispatch of its own


def parts_of(tensor: torch.Tensor) -> tuple[bool, int, int, int, int, int]:
    """Return True if a tensor is copy-on-write, the addresses of its TensorImpl and StorageImpl, its dispatch keys,
    and the size and address of the bytes of its storage.
    """
    storage = tensor.untyped_storage()
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    parts = tensor._cdata, storage._cdata, keys, storage.nbytes(), address_of_storage(tensor)
    return is_copy_on_write(tensor), *parts


_TORCHS_CALL: Final[Any] = OpOverload.__call__
_CODE: Final[Any] = getattr(_TORCHS_CALL, "__code__", None)
_HANDS_ON: Final = _CODE is not None and _CODE.co_names == ("_op",)  # the arguments, as they are


def function_of(op: Any) -> Any:
    """Return what to call to run an op: where its class only hands the arguments on, that which takes them."""
    kind = type(op)
    return op._op if _HANDS_ON and kind is OpOverload and kind.__call__ is _TORCHS_CALL else op


_RUNS_ENGINE: Final[Any] = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
_CREATE_GRAPH: Final = 2  # which of what that is given beside the roots


def pass_makes_graph(frame: FrameType | None, has_grad: bool) -> bool:
    """Return True if the backward pass that runs makes a graph, even if asked in a hook with another grad mode.

    Args:
        frame: the program's innermost.
        has_grad: the grad mode, which is the pass's where no hook of the program's runs.
    """
    found = None if frame is None or frame.f_code is _RUNS_ENGINE else asked_for_graph(frame)
    return has_grad if found is None else found


def asked_for_graph(frame: FrameType | None) -> bool | None:
    """Return True if the innermost backward pass below a frame was asked to make a graph; None where there is none."""
    while frame is not None and frame.f_code is not _RUNS_ENGINE:
        frame = frame.f_back
    given: tuple[Any, ...] = () if frame is None else frame.f_locals.get("args", ())
    return bool(given[_CREATE_GRAPH]) if len(given) > _CREATE_GRAPH else None


def runs_hook(frame: FrameType | None, is_main: bool) -> bool:
    """Return True if what runs on this thread was called by a hook of the program's, not by the formula of a node.

    Args:
        frame: the program's innermost. Where a dispatch mode of the program's passes an op on, that is its frame, and
            who has called the op is not known: False.
        is_main: the thread is one that the program has begun itself, for all that is known.
    """
    if frame is None or frame.f_code is _RUNS_ENGINE:
        return False
    while frame.f_code is not _RUNS_ENGINE:
        if frame.f_code.co_name == "__torch_dispatch__":
            return False
        if frame.f_back is None:  # a thread of the engine's, or one whose program calls the engine in another way
            return not is_main and frame.f_code.co_name != "_bootstrap"
        frame = frame.f_back
    return True


def frame_of_thread(ident: int) -> FrameType | None:
    """Return the innermost frame of a thread, by the number that `threading.get_ident` gives in it."""
    return sys._current_frames().get(ident)


def queue_callback(action: Callable[[], None]) -> None:
    """Call `action` when the engine has run the last node of the backward pass under way."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
