"""Which containers among a call's arguments the recorder enters, and the tensors that it finds there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from ...store.records import TreePath

DEEPEST: Final = 256  # containers in containers; compiled, Python's own limit would not end a recursion

_INT64: Final = 1 << 63
_LEAVES: Final = frozenset((type(None), bool, int, float, str))  # hold nothing


def is_int64(number: int) -> bool:
    """Tell whether a Python integer is one for a record."""
    return -_INT64 <= number < _INT64


def repr_of(item: Any) -> str:
    """Return the repr of a number or of what holds some; of an int too long to be one, its hexadecimal digits."""
    try:
        return repr(item)
    except ValueError:  # sys.set_int_max_str_digits: 4,300 by default
        return hex(item) if isinstance(item, int) else f"{type(item).__name__}(...)"


def is_mapping(item: Any) -> bool:
    """Tell whether an argument is entered by its keys: a mapping or a dataclass."""
    return isinstance(item, Mapping) or (dataclasses.is_dataclass(item) and not isinstance(item, type))


def is_too_deep(item: Any, within: tuple[int, ...]) -> bool:
    """Tell whether a container is not entered: one that it holds itself, or one in too many others."""
    return bool(within) and (len(within) >= DEEPEST or id(item) in within)


def items_of(item: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the entries of what `is_mapping` is true of; keys are texts or integers of 64 bits."""
    if isinstance(item, Mapping):
        for key in item:
            plain = isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool) and is_int64(key))
            yield (key if plain else repr_of(key)), item[key]
    else:
        for field in dataclasses.fields(item):
            yield field.name, getattr(item, field.name, None)


def tensors_in(item: Any, path: TreePath = (), within: tuple[int, ...] = ()) -> Iterator[tuple[TreePath, torch.Tensor]]:
    """Yield the tensors of what is entered, each with its path."""
    if isinstance(item, torch.Tensor):
        yield path, item
        return
    entries: Iterable[tuple[Any, Any]]
    if isinstance(item, (list, tuple)):
        entries = enumerate(item)
    elif is_mapping(item):
        entries = items_of(item)
    else:
        return
    if not is_too_deep(item, within):
        inner = (*within, id(item))
        for key, entry in entries:
            if type(entry) not in _LEAVES:
                yield from tensors_in(entry, (*path, key), inner)
