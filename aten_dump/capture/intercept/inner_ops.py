"""Ops that are made of other ops: those of tensor subclasses, and higher-order operators.

Theory of operation
    While a mode handles an op it is off torch's stack, so an implementation in Python that runs ops of its own would
    run them unseen. For such an op the recorder's mode goes back on the stack, and a stand-in for the op's call goes on
    the thread's, so that inner ops become its children.

    A subclass: the mode goes to the bottom of the stack. Modes of the user's that were below it see the op next, as
    they would without us; then the op comes to our mode again, which returns NotImplemented, and the subclass's
    ``__torch_dispatch__`` runs with our mode alone on the stack.

    A higher-order operator (cond, flex_attention, ...): its kernel in plain PyTorch is called as the dispatcher would
    call it next; for kernels that refuse to run under a mode, the functions that it was given are. With another mode
    below ours, that mode decides what happens, and inner ops stay unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from ..calls.ops import PendingOp
from ..interrupts import runs_program
from ..naming.call_name import ATEN
from ..step.open_calls import OpenCall
from ..step.threads import ThreadState
from ..torch_internals.engine import get_sequence_nr, len_dispatch_stack
from ..torch_internals.higher_order import kernel_of
from ..torch_internals.mode_stack import (
    TorchDispatchMode,
    push_dispatch_mode,
    push_dispatch_mode_below,
    take_dispatch_mode_off,
)
from ..unseen import Coverage

# Where the mode can be put back for a higher-order operator. Others are recorded as one call.
_REACH: Final[dict[str, Literal["kernel", "bodies"]]] = {
    "cond": "bodies",
    "scan": "bodies",
    "associative_scan": "bodies",
    "while_loop": "kernel",
    "map_impl": "kernel",
    "flex_attention": "kernel",
    "flex_attention_backward": "kernel",
}


def open_nested(op: PendingOp) -> OpenCall:
    """Put a call that stands for `op` on its thread's stack: the parent of what runs until `Step.drop`."""
    if op.recorded:
        op.n = op.entry.counter.next()
    return open_again(op, op.thread)


def open_again(op: PendingOp, thread: ThreadState) -> OpenCall:
    """Put a call that stands for `op`, which has its number, on a thread's stack, as `open_nested` does."""
    call = OpenCall(op.id, ATEN, op.entry.plan.name, thread.stack[-1] if thread.stack else None)
    call.parent_id, call.phase, call.forward, call.stack = op.parent, op.phase, op.forward, op.stack
    call.fqn, call.module = op.fqn, op.module
    call.sequence_start = get_sequence_nr()
    call.recorded = False  # its record is that of the op
    call.visible = op.id if op.recorded else op.parent
    thread.stack.append(call)
    return call


@runs_program
def run_subclass_op(
    mode: TorchDispatchMode, thread: ThreadState, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an op on tensors that handle it in Python, with `mode` seeing their inner ops."""
    outer, thread.delegated = thread.delegated, func
    push_dispatch_mode_below(mode)
    try:
        return func(*args, **kwargs)
    finally:
        take_dispatch_mode_off(mode)
        thread.delegated = outer


@runs_program
def run_higher_order(
    mode: TorchDispatchMode, coverage: Coverage, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a higher-order operator, with `mode` seeing its body's ops where that can be."""
    kernel = kernel_of(func)
    reach = _REACH.get(func.name())
    if kernel is None or reach is None or len_dispatch_stack():
        coverage.add("higher_order", func.name())
        return func(*args, **kwargs)
    if reach == "bodies":
        return kernel(*[_seen(mode, a) if callable(a) else a for a in args], **kwargs)
    return _seen(mode, kernel)(*args, **kwargs)


def _seen(mode: TorchDispatchMode, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with `mode` on the stack while it runs."""

    @runs_program
    def seen(*args: Any, **kwargs: Any) -> Any:
        push_dispatch_mode(mode)
        try:
            return function(*args, **kwargs)
        finally:
            take_dispatch_mode_off(mode)

    return seen
