"""An independent record of the aten ops of one sample: fingerprints before and after each op, no more."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .fingerprints import Fingerprint, fingerprint, tensors_of


class TracedOp(NamedTuple):
    op: str
    inputs: list[Fingerprint]
    outputs: list[Fingerprint]
    written: set[str]  # arguments that the schema says are written
    changed: set[str]  # these, and other arguments whose bits are others after the op


class Trace(TorchDispatchMode):
    """Traces every aten op it sees; where an argument's bits changed, it was written, whatever the schema says."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[TracedOp] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C._DisableTorchDispatch():
            inputs = list(map(fingerprint, tensors_of((args, kwargs))))
            named = _named(func, args, kwargs)
            before = {name: list(map(fingerprint, tensors_of(given))) for name, given in named.items()}
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self.ops.append(TracedOp(func.name(), inputs, [], set(), set()))
            raise
        with torch._C._DisableTorchDispatch():
            after = {name: list(map(fingerprint, tensors_of(given))) for name, given in named.items()}
            outputs = list(map(fingerprint, tensors_of(out)))
            written = _written(func, named)
            changed = {name for name in before if before[name] != after[name]} - _aliases(named, written)
        self.ops.append(TracedOp(func.name(), inputs, outputs, written, changed | written))
        return out


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    schema = getattr(func, "_schema", None)
    names = [a.name for a in schema.arguments] if schema is not None else []
    named = {(names[i] if i < len(names) else str(i)): given for i, given in enumerate(args)} | dict(kwargs)
    return {name: given for name, given in named.items() if any(True for _ in tensors_of(given))}


def _written(func: Any, named: dict[str, Any]) -> set[str]:
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    return {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write and a.name in named}


def _aliases(named: dict[str, Any], written: set[str]) -> set[str]:
    """The arguments that stand on memory of a written one: `x.mul_(y)` may be `mul.out(x, y, out=x)`."""
    memory = {a for name in written for a in _addresses(named[name])}
    return {name for name, given in named.items() if memory & _addresses(given)}


def _addresses(tree: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors_of(tree) if t.layout is torch.strided and not t.is_nested}
