"""Finds out whether a program is being traced or runs.

Theory of operation
    torch.jit.trace, make_fx, torch.export and the compiler run the program's ops to learn what they are: on fake or
    functional tensors, which have no elements, or with a tracer that writes down every op it meets, the recorder's
    included. Such ops are no computation of the program, and are passed through. The tests are on the path of every
    op, cheapest first: a tracer is looked for only where another mode is on the stack.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._C import _get_dispatch_mode as get_dispatch_mode
from torch._C import _TorchDispatchModeKey as ModeKey

from .engine import DISABLED_DISPATCH, is_jit_tracing, len_dispatch_stack

PLAIN: Final = 0
OWN_DISPATCH: Final = 1  # a subclass that handles ops in Python
TRACED: Final = 2  # a fake or functional tensor: it stands for one

_REAL: Final = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str, tuple, list))
_STAND_INS: Final = ("torch._subclasses.fake_tensor", "torch._subclasses.functional_tensor")


def is_traced() -> bool:
    """Return True if what runs now is traced."""
    if is_jit_tracing():
        return True
    return len_dispatch_stack() > 0 and (
        get_dispatch_mode(ModeKey.FAKE) is not None
        or get_dispatch_mode(ModeKey.PROXY) is not None
        or get_dispatch_mode(ModeKey.FUNCTIONAL) is not None
    )


def takes_stand_ins(args: tuple[Any, ...]) -> bool:
    """Return True if a Python-level call is given a fake or functional tensor."""
    for one in args:  # noqa: SIM110 - a generator takes longer
        if type(one) not in _REAL and type(one).__module__ in _STAND_INS:
            return True
    return False


def is_compiling() -> bool:
    """Return True if dynamo or a backend of it is at work on this thread."""
    return torch._guards.CompileContext.try_get() is not None


_kinds: Final[dict[type, int]] = {}


def kind_of_types(types: Any) -> int:
    """Return what the subclasses among an op's arguments make of it; TRACED wins over OWN_DISPATCH."""
    found = PLAIN
    for kind in types:
        known = _kinds.get(kind)
        if known is None:
            known = _kinds[kind] = _kind_of(kind)
        found = max(found, known)
    return found


def _kind_of(kind: type) -> int:
    if kind.__module__ in _STAND_INS:
        return TRACED
    dispatch = getattr(kind, "__torch_dispatch__", None)
    return PLAIN if kind is torch.Tensor or dispatch is DISABLED_DISPATCH else OWN_DISPATCH
