"""Which containers among a call's arguments the recorder enters, and the tensors that it finds there."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from ...store.records import TreePath

DEEPEST: Final = 256  # containers in containers; compiled, Python's own limit would not end a recursion

_INT64: Final = 1 << 63
CONSTANTS: Final = frozenset((torch.dtype, torch.device, torch.layout, torch.memory_format))
LEAVES: Final = frozenset((type(None), bool, int, float, str)) | CONSTANTS  # hold nothing


def is_int64(number: int) -> bool:
    """Return True if a Python integer is one for a record."""
    return -_INT64 <= number < _INT64


def repr_of(item: Any) -> str:
    """Return the repr of a number or of what holds some; of an int too long to be one, its hexadecimal digits."""
    try:
        return repr(item)
    except Exception:  # noqa: BLE001 - the program's own; of an int sys.set_int_max_str_digits, 4,300 by default
        return hex(item) if isinstance(item, int) else f"{type(item).__name__}(...)"


def is_mapping(item: Any) -> bool:
    """Return True if an argument is entered by its keys: a dict, a `UserDict` or a dataclass.

    Any other mapping may compute an entry when it is asked for it, or draw it at random.
    """
    return isinstance(item, (dict, UserDict)) or (dataclasses.is_dataclass(item) and not isinstance(item, type))


def is_too_deep(item: Any, within: tuple[int, ...]) -> bool:
    """Return True if a container is not entered: one that it holds itself, or one in too many others."""
    return bool(within) and (len(within) >= DEEPEST or id(item) in within)


def entries_of(item: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """Return an iterator over what a list or tuple holds, that runs no code of the program's."""
    return list.__iter__(item) if isinstance(item, list) else tuple.__iter__(item)


def items_of(item: Any) -> list[tuple[Any, Any]] | None:
    """Return the entries of what `is_mapping` is true of; keys are texts or integers of 64 bits.

    None of one that does not say, or raises when it is asked.
    """
    if isinstance(item, UserDict):
        item = vars(item).get("data")
    if isinstance(item, dict):
        pairs = OrderedDict.items(item) if isinstance(item, OrderedDict) else dict.items(item)
        return [(_key_of(key), entry) for key, entry in pairs]
    try:
        return [(field.name, getattr(item, field.name, None)) for field in dataclasses.fields(item)]
    except Exception:  # noqa: BLE001 - the program's own, which has asked for nothing
        return None


def _key_of(key: Any) -> Any:
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        number = int.__index__(key)  # what the program's own class compares is not asked
        if is_int64(number):
            return number
    return repr_of(key)


def tensors_in(item: Any, path: TreePath = (), within: tuple[int, ...] = ()) -> Iterator[tuple[TreePath, torch.Tensor]]:
    """Yield the tensors of what is entered, each with its path."""
    if isinstance(item, torch.Tensor):
        yield path, item
        return
    if type(item) in LEAVES:
        return
    entries: Iterable[tuple[Any, Any]]
    if isinstance(item, (list, tuple)):
        entries = enumerate(entries_of(item))
    elif is_mapping(item):
        entries = items_of(item) or ()
    else:
        return
    if not is_too_deep(item, within):
        inner = (*within, id(item))
        for key, entry in entries:
            if type(entry) not in LEAVES:
                yield from tensors_in(entry, (*path, key), inner)
