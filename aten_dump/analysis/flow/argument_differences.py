"""Arguments of two calls that are not tensors, compared exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from ...dump import Call, GeneratorRef, ObjectRef, Value
from ..rerun.allowed_ops import registered_op

_PLACES: Final = ("device", "pin_memory", "generator", "layout", "non_blocking")  # they say where to compute, not what
_OF_GROUP: Final = frozenset(("group", "ranks"))  # a process group: each device has its own backend
_ABSENT: Final = object()
_DIMENSIONS: Final = frozenset(("dim", "dims", "dim0", "dim1", "axis"))
_NEW_DIMENSION: Final = ("stack", "unsqueeze")  # in names of calls with one more result, which is counted
_LIMITS: Final = ("min", "max", "tiny", "eps", "smallest_normal")  # of torch.finfo


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """One argument that differs."""

    name: str
    target: str
    baseline: str
    dtypes: tuple[str, str] | None = None  # if both are dtypes, their names: other precisions need other dtypes
    numbers: tuple[tuple[float, float], ...] = ()  # (target's, baseline's), if only numbers differ

    def __str__(self) -> str:
        return f"{self.name} is {self.target}, in the baseline {self.baseline}"


def argument_differences(target: Call, baseline: Call) -> list[ArgumentDifference]:
    """Return the arguments that differ: the op, numbers, lists, flags, and tensors that only one side has."""
    found = list(_Comparing(target, baseline).differences())
    if not _same_op(target, baseline):
        found.insert(0, ArgumentDifference("the op", target.op, baseline.op))
    return found


class _Comparing:
    """Compares the arguments of two calls."""

    def __init__(self, target: Call, baseline: Call) -> None:
        self._calls = target, baseline

    @cached_property
    def _dtypes(self) -> tuple[set[torch.dtype], set[torch.dtype]]:
        return _dtypes(self._calls[0]), _dtypes(self._calls[1])

    def differences(self) -> Iterator[ArgumentDifference]:
        target, baseline = map(_named, self._calls)
        for name in dict.fromkeys((*baseline, *target)):
            one, other = target.get(name, _ABSENT), baseline.get(name, _ABSENT)
            if name in _PLACES or self._same(one, other) or (name in _DIMENSIONS and self._same_places(one, other)):
                continue
            if _ABSENT in (one, other) and self._is_default(name, other if one is _ABSENT else one):
                continue
            texts = _given(self._calls[0], name, one), _given(self._calls[1], name, other)
            are_dtypes = isinstance(one, torch.dtype) and isinstance(other, torch.dtype)
            names = (texts[0].removeprefix("torch."), texts[1].removeprefix("torch.")) if are_dtypes else None
            yield ArgumentDifference(name, *texts, names, self._numbers(one, other) or ())

    def _numbers(self, one: Any, other: Any) -> tuple[tuple[float, float], ...] | None:
        """Return the numbers in which two arguments differ; None if they differ in anything else."""
        if isinstance(one, float) and isinstance(other, float):
            return () if self._same(one, other) else ((one, other),)
        if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
            found = [self._numbers(*pair) for pair in zip(one, other, strict=True)]
            return None if None in found else tuple(pair for pairs in found for pair in pairs or ())
        return () if self._same(one, other) else None

    def _is_default(self, name: str, item: Any) -> bool:
        """Return True if an argument is the same as none."""
        known = [found[name] for call in self._calls if name in (found := _defaults(call.op))]
        is_nothing = item is None or item is False
        if not known:
            return is_nothing
        return any(self._same(item, default) or (is_nothing and default in (None, False)) for default in known)

    def _same(self, one: Any, other: Any) -> bool:
        if isinstance(one, Value) and isinstance(other, Value):
            return one.shape == other.shape or not self._are_filled(one, other)  # otherwise compared as values
        if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
            return len(one) == len(other) and all(map(self._same, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() & other.keys() >= _OF_GROUP:
                return all(self._same(one[key], other[key]) for key in _OF_GROUP)
            return one.keys() == other.keys() and all(self._same(one[key], other[key]) for key in one)
        if isinstance(one, (GeneratorRef, ObjectRef, torch.device)) and type(one) is type(other):
            return True
        if isinstance(one, Value) or isinstance(other, Value):
            return False
        if isinstance(one, float) and isinstance(other, float) and one != other and self._same_limit(one, other):
            return True
        return bool(one == other or (one != one and other != other))

    def _same_places(self, one: Any, other: Any) -> bool:
        """Return True if dimensions are the same, counted from the first or from the last."""
        return self._same(*(_from_first(call, item) for call, item in zip(self._calls, (one, other), strict=True)))

    def _are_filled(self, one: Value, other: Value) -> bool:
        """Return True if both calls only write to these: their shape replaces the size that a factory gets."""
        values = zip(self._calls, (one, other), strict=True)
        return all(call.mutated and value.id not in call.read_value_ids() for call, value in values)

    def _same_limit(self, one: float, other: float) -> bool:
        """Return True if both are the same limit of each side's dtype: ``finfo(dtype).min`` as a mask."""
        return any(
            one == getattr(torch.finfo(t), name) and other == getattr(torch.finfo(b), name)
            for t in self._dtypes[0]
            for b in self._dtypes[1]
            if t != b
            for name in _LIMITS
        )


def _named(call: Call) -> dict[str, Any]:
    args, kwargs = call.inputs
    names = call.arguments
    named = {names[n] if n < len(names) else str(n): item for n, item in enumerate(args)}
    return named | kwargs


def _from_first(call: Call, dimensions: Any) -> Any:
    """Return dimensions of a call's inputs, all counted from the first one."""
    given = next((value for _, value in call.input_values()), None)
    if given is None or any(name in call.op for name in _NEW_DIMENSION):
        return dimensions
    if isinstance(dimensions, (list, tuple)):
        return [_from_first(call, one) for one in dimensions]
    return dimensions + len(given.shape) if type(dimensions) is int and dimensions < 0 else dimensions


def _dtypes(call: Call) -> set[torch.dtype]:
    """Return the floating dtypes of a call's tensors and arguments."""
    values = [v for _, v in call.all_values() if v.is_floating]
    args, kwargs = call.inputs
    found = {value.dtype for value in values if not value.dtype.is_complex}
    return found | {a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype) and a.is_floating_point}


def _defaults(op: str) -> dict[str, Any]:
    found = registered_op(op)
    schema = None if found is None else found._schema
    return {} if schema is None else {a.name: a.default_value for a in schema.arguments if a.has_default_value()}


def _given(call: Call, name: str, item: Any) -> str:
    """Return the argument of a call in words; the op's default if it is not given."""
    default = _defaults(call.op).get(name) if item is _ABSENT else None
    return _text(item) if default is None else f"{_text(default)} (the default)"


def _text(item: Any) -> str:
    if item is _ABSENT:
        return "not given"
    if isinstance(item, Value):
        return f"a tensor {item.dtype_name}{list(item.shape)}"
    text = str(item)
    return text if len(text) <= 80 else text[:77] + "..."


def _same_op(target: Call, baseline: Call) -> bool:
    """Return True if two calls name one op; of a module's class other tools know the name, not where it is defined."""
    ops = target.op, baseline.op
    if target.kind == baseline.kind == "module" and any("." not in op for op in ops):
        return ops[0].rpartition(".")[2] == ops[1].rpartition(".")[2]
    return ops[0] == ops[1]
