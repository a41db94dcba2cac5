"""The names of Python-level torch calls: which prefix and api a function has."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from ...torch_names import HigherOrderOperator, OpOverload, OpOverloadPacket
from .call_name import CallName

# Longest first. An API's full name begins with one of these; the rest of it is its `api`.
_PREFIXES: Final = (
    ("torch.nn.functional.", "Functional"),
    ("torch._C._nn.", "Functional"),
    ("torch.distributed.distributed_c10d.", "Distributed"),
    ("torch.distributed.", "Distributed"),
    ("torch._VF.", "VF"),
    ("torch._C._VariableFunctions.", "Torch"),
    ("torch._C.TensorBase.", "Tensor"),
    ("torch.Tensor.", "Tensor"),
    ("torch_npu.", "NPU"),
    ("torch.functional.", "Torch"),
    ("torch.", "Torch"),
)

_TORCH: Final = ("torch.", "torch_npu.")

# Attributes whose read computes a tensor; the read of any other attribute is not a call.
_COMPUTED_ATTRIBUTES: Final = frozenset(("T", "mT", "H", "mH", "real", "imag"))
# Attributes that torch sets, sometimes with a lock of the tensor's held, for which asking for its `grad_fn` would wait.
_SET_BY_TORCH: Final = frozenset(("_backward_hooks", "_post_accumulate_grad_hooks"))


_names: Final[dict[Any, CallName | None]] = {}  # of torch's functions, which are there for good
_names_of_others: Final[WeakKeyDictionary[Any, CallName]] = WeakKeyDictionary()


def name_of_api(func: Any) -> CallName | None:
    """Return the name of a function that a TorchFunctionMode was handed; None when it is not recorded as a call.

    Not recorded: reads of attributes that compute nothing, what torch keeps of hooks, and ops called as ``torch.ops``,
    which are seen as aten calls.
    """
    try:
        return _names[func]
    except KeyError:
        return _of_others(func)
    except TypeError:  # not hashable
        return _resolve(func)


def _of_others(func: Any) -> CallName | None:
    """Return the name of a function that was not met before or is none of torch's: that one may go away."""
    try:
        known = _names_of_others.get(func)
    except TypeError:  # no weak references to it: the getter of an attribute
        known = None
    if known is not None:
        return known
    name = _resolve(func)
    if name is not None and not name.op.startswith(_TORCH) and isinstance(func, FunctionType):
        _names_of_others[func] = name
    else:
        _names[func] = name
    return name


def _resolve(func: Any) -> CallName | None:
    if isinstance(func, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return None
    plain = getattr(func, "__name__", type(func).__name__)
    owner = getattr(func, "__self__", None)
    if plain in ("__get__", "__set__", "__delete__") and owner is not None:
        attribute = getattr(owner, "__name__", "")
        if attribute in _SET_BY_TORCH or (plain == "__get__" and attribute not in _COMPUTED_ATTRIBUTES):
            return None
        api = attribute if plain == "__get__" else f"{attribute}.{plain}"
        return CallName(f"torch.Tensor.{attribute}.{plain}", "Tensor", api)
    try:
        full = torch.overrides.resolve_name(func)
    except TypeError:  # not hashable
        full = None
    if full is None:
        module = getattr(func, "__module__", None) or type(owner).__module__
        full = f"{module}.{getattr(func, '__qualname__', plain)}"
    else:
        full = _own_name(func, full, plain)
    for start, prefix in _PREFIXES:
        if full.startswith(start):
            return CallName(full, prefix, full[len(start) :])
    return CallName(full, "Torch", full)


def _own_name(func: Any, full: str, plain: str) -> str:
    """Return `full`, or the same function's own name where `full` is an alias of it (torch.spmm is torch.mm)."""
    owner, _, last = full.rpartition(".")
    found: Any = torch
    for part in f"{owner}.{plain}".split(".")[1:]:
        found = getattr(found, part, None)
    return f"{owner}.{plain}" if last != plain and found is func else full
