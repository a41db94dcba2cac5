"""Private names of torch that recorder, reader and analysis use as they are.

What only capture asks of private torch is in its room `torch_internals`; nothing else names any of it.

In: nothing from this package.
Out: the same things, by names that say what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock, get_ident
from types import ModuleType
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

Tensor = torch.Tensor

# -- views that only say how elements are to be read
conj_view: Final[Callable[[Tensor], Tensor]] = torch._conj
neg_view: Final[Callable[[Tensor], Tensor]] = torch._neg_view


def without_bits(tensor: Tensor) -> Tensor:
    """Return a tensor's elements as they are in memory, conj and neg bits not applied."""
    if tensor.dtype.is_complex and tensor.is_conj():
        tensor = conj_view(tensor)
    return neg_view(tensor) if tensor.is_neg() else tensor


# -- ops that are in graphs of inductor alone, which registers them as it is imported
OPS_OF_INDUCTOR: Final = "torch._inductor.inductor_prims"


def register_ops_of_inductor() -> None:
    """Import what registers inductor's own ops."""
    import_module(OPS_OF_INDUCTOR)


# -- quantized tensors of given integers
quantized_per_tensor: Final[Callable[[Tensor, float, int], Tensor]] = torch._make_per_tensor_quantized_tensor
quantized_per_channel: Final[Callable[[Tensor, Tensor, Tensor, int], Tensor]] = torch._make_per_channel_quantized_tensor

# -- the dispatcher's registry, asked by the name of an op; a name that it cannot read is a RuntimeError
has_kernel: Final[Callable[[str], bool]] = torch._C._dispatch_has_kernel
has_kernel_for: Final[Callable[[str, str], bool]] = torch._C._dispatch_has_kernel_for_dispatch_key

# -- the schema of an op from its text; whether the dispatcher has the op does not matter
parse_schema: Final[Callable[[str], Any]] = torch._C.parse_schema

# -- weak references to storages, which `storage._weak_ref()` makes
is_expired: Final[Callable[[Any], bool]] = torch.UntypedStorage._expired  # type: ignore[assignment]
free_weak_ref: Final[Callable[[Any], None]] = torch.UntypedStorage._free_weak_ref
referred_storage: Final[Callable[[Any], torch.UntypedStorage | None]] = torch.UntypedStorage._new_with_weak_ptr

# -- what texts of a dump may name: an attribute that is looked up in torch itself may import half of it (torch._dynamo)
DTYPES: Final = {name: found for name, found in vars(torch).items() if isinstance(found, torch.dtype)}
LAYOUTS: Final = {name: found for name, found in vars(torch).items() if isinstance(found, torch.layout)}
MEMORY_FORMATS: Final = {name: found for name, found in vars(torch).items() if isinstance(found, torch.memory_format)}

# -- dtypes of which torch computes nothing: two numbers to a byte, or bits without a meaning; a torch may lack some
_PACKED: Final = ("float4_e2m1fn_x2", "bit", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "quint4x2", "quint2x4")
_NARROW: Final = tuple(f"{sign}int{n}" for sign in ("", "u") for n in range(1, 8))
DTYPES_WITHOUT_NUMBERS: Final = frozenset(
    dtype for name in (*_PACKED, *_NARROW) if (dtype := DTYPES.get(name)) is not None
)


def with_numbers(tensor: Tensor) -> Tensor:
    """Return a tensor of such a dtype as the integers that its bytes are; any other as it is."""
    if tensor.dtype not in DTYPES_WITHOUT_NUMBERS:
        return tensor
    return tensor.view(torch.uint8 if tensor.dtype.itemsize == 1 else torch.int16)


# -- torch.distributed, which a build of torch may lack


def process_group_named(name: str) -> Any:
    """Return the process group that a functional collective names; None where there is none of it."""
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]
    except (RuntimeError, AttributeError, ValueError, TypeError):  # not registered, or a torch without the question
        return None


def async_collective_tensor() -> type | None:
    """Return the class of tensors that a functional collective is still filling; None where none can be there yet."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return getattr(module, "AsyncCollectiveTensor", None)


# -- shapes alone, for which torch has functions of its own that it keeps dynamo from compiling

_COMPILER: Final = "torch._dynamo"
_one_at_a_time: Final = Lock()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Give torch's own functions of shapes this to ask, not the compiler that they would import.

    That import takes seconds and makes a folder. Whoever else asks for the compiler meanwhile gets it.
    """
    with _one_at_a_time:
        if _COMPILER in sys.modules:
            yield
            return
        asked: list[Any] = []
        sys.modules[_COMPILER] = _NoCompiler(asked)
        try:
            yield
        finally:
            if isinstance(sys.modules[_COMPILER], _NoCompiler):
                del sys.modules[_COMPILER]
            for function in asked:
                function.__dict__.pop("__dynamo_disable", None)


class _NoCompiler(ModuleType):
    """What stands for torch._dynamo in one thread."""

    def __init__(self, asked: list[Any]) -> None:
        super().__init__(_COMPILER)
        self._asked = asked
        self._thread = get_ident()

    def __getattr__(self, name: str) -> Any:
        if name != "disable" or get_ident() != self._thread:
            if sys.modules.get(_COMPILER) is self:
                del sys.modules[_COMPILER]
            return getattr(import_module(_COMPILER), name)
        return self._leave

    def _leave(self, function: Any, *_: object, **__: object) -> Any:
        self._asked.append(function)
        return function
