"""The stacks of modes that torch keeps for each thread: putting ours on, and taking it off from wherever it is.

Programs push and pop modes of their own around and inside ours, and not always in the order of a stack.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch._C import _get_function_stack_at as function_mode_at
from torch._C import _len_torch_function_stack as len_function_stack
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as _without_modes
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as _push_dispatch_mode

from .engine import dispatch_mode_at, len_dispatch_stack


class Modes(NamedTuple):
    """The recorder's two modes."""

    function: TorchFunctionMode
    dispatch: TorchDispatchMode
    outermost: bool = False  # below all that are there: a program that leaves a mode takes the top one off, whose ever

    def push(self) -> None:
        """Put both on the stacks of this thread, once."""
        self.take_off()
        if self.outermost:
            put_function_mode_back(self.function, 0)
            push_dispatch_mode_below(self.dispatch)
        else:
            _push_function_mode(self.function)
            _push_dispatch_mode(self.dispatch)

    def take_off(self) -> None:
        """Take both off the stacks of this thread, where they are on them."""
        take_dispatch_mode_off(self.dispatch)
        take_function_mode_off(self.function)


# -- function modes


def function_mode_position(mode: TorchFunctionMode) -> int | None:
    """Return where on the stack of function modes `mode` is, counted from the bottom; None if it is not there."""
    return next((i for i in range(len_function_stack()) if function_mode_at(i) is mode), None)


def take_function_mode_off(mode: TorchFunctionMode) -> int | None:
    """Take `mode` off the stack, wherever it is; return its position, None if it was not there."""
    position = function_mode_position(mode)
    if position is not None:
        above = [_pop_function_mode() for _ in range(len_function_stack() - position)]
        for other in reversed(above[:-1]):
            _push_function_mode(other)
    return position


def put_function_mode_back(mode: TorchFunctionMode, position: int) -> None:
    """Undo `take_function_mode_off`."""
    above = [_pop_function_mode() for _ in range(len_function_stack() - position)]
    for one in (mode, *reversed(above)):
        _push_function_mode(one)


def push_function_mode(mode: TorchFunctionMode) -> bool:
    """Let a node's Python code (hooks, custom functions, recompute) be seen; return True if that was needed.

    ``Tensor.backward`` is itself a call that the function mode sees, so the mode is off the stack in it. Should the
    node raise, the engine puts the stack back as it was.
    """
    if function_mode_position(mode) is not None:
        return False
    _push_function_mode(mode)
    return True


def pop_function_mode(mode: TorchFunctionMode) -> None:
    """Take the mode away again after the node's run."""
    if _is_top_function_mode(mode):
        _pop_function_mode()


@contextlib.contextmanager
def without_function_mode(mode: TorchFunctionMode) -> Iterator[None]:
    """Take the function mode off the stack for a while, where it is the top one."""
    if not _is_top_function_mode(mode):
        yield
        return
    _pop_function_mode()
    try:
        yield
    finally:
        _push_function_mode(mode)


def _is_top_function_mode(mode: TorchFunctionMode) -> bool:
    depth = len_function_stack()
    return depth > 0 and function_mode_at(depth - 1) is mode


# -- dispatch modes


def push_dispatch_mode(mode: TorchDispatchMode) -> None:
    """Put `mode` on top of the stack."""
    _push_dispatch_mode(mode)


def push_dispatch_mode_below(mode: TorchDispatchMode) -> None:
    """Put `mode` at the bottom of the stack."""
    others = [_pop_dispatch_mode() for _ in range(len_dispatch_stack())]
    _push_dispatch_mode(mode)
    for other in reversed(others):
        _push_dispatch_mode(other)


def take_dispatch_mode_off(mode: TorchDispatchMode) -> int | None:
    """Take `mode` off the stack, wherever it is; return its position, None if it was not there."""
    position = next((i for i in range(len_dispatch_stack()) if dispatch_mode_at(i) is mode), None)
    if position is not None:
        above = [_pop_dispatch_mode() for _ in range(len_dispatch_stack() - position)]
        for other in reversed(above[:-1]):
            _push_dispatch_mode(other)
    return position


def put_dispatch_mode_back(mode: TorchDispatchMode, position: int) -> None:
    """Undo `take_dispatch_mode_off`."""
    above = [_pop_dispatch_mode() for _ in range(len_dispatch_stack() - position)]
    for one in (mode, *reversed(above)):
        _push_dispatch_mode(one)


def take_only_dispatch_mode_off(mode: TorchDispatchMode) -> bool:
    """Take `mode` off the stack if it is the only one there; return True if it was."""
    if len_dispatch_stack() != 1:
        return False
    top = _pop_dispatch_mode()
    if top is mode:
        return True
    _push_dispatch_mode(top)
    return False


@contextlib.contextmanager
def without_only_dispatch_mode(mode: TorchDispatchMode) -> Iterator[bool]:
    """Run the block with `mode` off the stack if it is the only one there; yields whether it was."""
    off = take_only_dispatch_mode_off(mode)
    try:
        yield off
    finally:
        if off:
            _push_dispatch_mode(mode)


# -- detaching: an older torch copies what it detached by one more `detach`, which all modes see and those below ours
# -- copy again, unless it runs below autograd

DETACH: Final = torch.ops.aten.detach.default
below_autograd: Final[Any] = torch._C._AutoDispatchBelowADInplaceOrView


@functools.cache
def detaches_once() -> bool:
    """Return True if this torch detaches once what is detached once, by a tensor that counts."""
    seen = 0

    class Counting(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (1,))

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            nonlocal seen
            seen += 1
            return Counting()

    with _without_modes():
        Counting().detach()
    return seen == 1


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Detach a tensor as torch does to save it: same memory, same version, seen by modes where its own is."""
    if is_detached_in_sight(tensor):
        return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


class _SeesDetach(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func is DETACH
        return func(*args, **(kwargs or {}))


def is_detached_in_sight(tensor: torch.Tensor) -> bool:
    """Return True if modes see torch's own detaching of a tensor, as of a result that it saves for backward.

    They do not where the device's package has tensors of its own, as torch_npu for all but views.
    """
    if torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python) or _has_tensors_of_torch(tensor.device.type):
        return True
    return _sees_detaching(tensor)


@functools.cache
def _has_tensors_of_torch(device: str) -> bool:
    with _without_modes():
        return _sees_detaching(torch.empty(0, device=device))


def _sees_detaching(tensor: torch.Tensor) -> bool:
    mode = _SeesDetach()
    with _without_modes(), mode:
        _ = tensor.data
    return mode.found
