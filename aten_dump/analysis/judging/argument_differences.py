"""Arguments of two calls that are not tensors, compared exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from ...dump import Call, GeneratorRef, ObjectRef, Value

_PLACES: Final = ("device", "pin_memory", "generator", "layout", "non_blocking")  # where, not what
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """One argument that is not the same."""

    name: str
    target: str
    baseline: str
    of_dtype: bool = False  # both are dtypes: other precisions ask for others

    def __str__(self) -> str:
        return f"{self.name} is {self.target}, in the baseline {self.baseline}"


def argument_differences(target: Call, baseline: Call) -> list[ArgumentDifference]:
    """Return the arguments that differ: numbers, lists, flags, and tensors that only one side has."""
    return list(_differences(_named(target), _named(baseline)))


def _named(call: Call) -> dict[str, Any]:
    args, kwargs = call.inputs
    names = call.arguments
    named = {names[n] if n < len(names) else str(n): item for n, item in enumerate(args)}
    return named | kwargs


def _differences(target: dict[str, Any], baseline: dict[str, Any]) -> Iterator[ArgumentDifference]:
    for name in dict.fromkeys((*baseline, *target)):
        one, other = target.get(name, _ABSENT), baseline.get(name, _ABSENT)
        if name in _PLACES or _same(one, other):
            continue
        if _ABSENT in (one, other) and _is_default(other if one is _ABSENT else one):
            continue
        of_dtype = isinstance(one, torch.dtype) and isinstance(other, torch.dtype)
        yield ArgumentDifference(name, _text(one), _text(other), of_dtype)


def _is_default(item: Any) -> bool:
    """Tell whether giving this is likely the same as giving nothing."""
    return item is None or item is False


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Value) and isinstance(other, Value):
        return True  # compared as values
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (GeneratorRef, ObjectRef, torch.device)) and type(one) is type(other):
        return True
    if isinstance(one, Value) or isinstance(other, Value):
        return False
    return bool(one == other or (one != one and other != other))


def _text(item: Any) -> str:
    if item is _ABSENT:
        return "not given"
    if isinstance(item, Value):
        return f"a tensor {item.dtype_name}{list(item.shape)}"
    text = str(item)
    return text if len(text) <= 80 else text[:77] + "..."
