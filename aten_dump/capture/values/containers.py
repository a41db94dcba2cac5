"""Which containers among a call's arguments the recorder enters, and the tensors that it finds there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from ...store.records import TreePath

DEEPEST: Final = 256  # containers in containers; compiled, Python's own limit would not end a recursion


def is_mapping(item: Any) -> bool:
    """Tell whether an argument is entered by its keys: a mapping or a dataclass."""
    return isinstance(item, Mapping) or (dataclasses.is_dataclass(item) and not isinstance(item, type))


def is_too_deep(item: Any, within: tuple[int, ...]) -> bool:
    """Tell whether a container is not entered: one that it holds itself, or one in too many others."""
    return bool(within) and (len(within) >= DEEPEST or id(item) in within)


def items_of(item: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the entries of what `is_mapping` is true of; keys are texts or integers."""
    if isinstance(item, Mapping):
        for key in item:
            plain = isinstance(key, (str, int)) and not isinstance(key, bool)
            yield (key if plain else repr(key)), item[key]
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
            yield from tensors_in(entry, (*path, key), inner)
