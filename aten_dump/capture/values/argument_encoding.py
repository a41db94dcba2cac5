"""Arguments and results of calls as trees that msgpack can write; see TREE_* in store/records.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from ...store.records import (
    TREE_BYTES,
    TREE_COMPLEX,
    TREE_DEVICE,
    TREE_DICT,
    TREE_DTYPE,
    TREE_GENERATOR,
    TREE_LAYOUT,
    TREE_LIST,
    TREE_MEMORY_FORMAT,
    TREE_OBJECT,
    TREE_TUPLE,
    Tree,
    TreePath,
)
from .containers import CONSTANTS, LEAVES, entries_of, is_int64, is_mapping, is_too_deep, items_of, repr_of, tensors_in
from .distributed_literals import describe
from .value_ids import ValueIds

PLAIN_TYPES: Final = frozenset((type(None), bool, float, str))  # in trees as they are
_MANY: Final = 4  # tensors of a list that are kept together
_TENSOR: Final = torch.Tensor
_PARAMETER: Final = torch.nn.Parameter
_CONSTANT_TREES: Final[dict[type, tuple[int, str]]] = {  # the tag, and what is left out of the text
    torch.dtype: (TREE_DTYPE, "torch."),
    torch.device: (TREE_DEVICE, ""),
    torch.memory_format: (TREE_MEMORY_FORMAT, "torch."),
    torch.layout: (TREE_LAYOUT, "torch."),
}
_constants: Final[dict[Any, Tree]] = {}  # trees of dtypes, devices and the like, of which there are few
_PATHS: Final[tuple[TreePath, ...]] = tuple((position,) for position in range(16))  # of arguments, made once


def encode_all(items: tuple[Any, ...], values: ValueIds, keep: bool) -> list[Tree]:
    """Return each of `items` as a tree; see `encode`."""
    trees: list[Tree] = []
    for item in items:
        kind = type(item)
        if kind is _TENSOR or kind is _PARAMETER:
            trees.append(values.tree_of(item, keep))
        elif kind in PLAIN_TYPES or (kind is int and is_int64(item)):
            trees.append(item)
        else:
            trees.append(encode(item, values, keep))
    return trees


def encode_unless_known(
    items: tuple[Any, ...], values: ValueIds, keep: bool, known: tuple[Any, ...], known_trees: Sequence[Tree]
) -> list[Tree]:
    """Return the same; a tensor that is `known[i]` at position i is `known_trees[i]`."""
    trees: list[Tree] = []
    for at, item in enumerate(items):
        kind = type(item)
        if kind is _TENSOR or kind is _PARAMETER:
            is_known = at < len(known) and known[at] is item
            trees.append(known_trees[at] if is_known else values.tree_of(item, keep))
        elif kind in PLAIN_TYPES:
            trees.append(item)
        else:
            trees.append(encode(item, values, keep))
    return trees


def encode_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: ValueIds, keep: bool
) -> tuple[tuple[Tree, ...], dict[str, Tree] | None, list[tuple[TreePath, torch.Tensor]], bool]:
    """Return arguments as trees, and the tensors in them with their paths: one walk for `encode` and `tensors_in`.

    Returns:
        the trees, those of `kwargs`, the tensors, and whether some of these may be in containers.
    """
    in_containers = False
    found: list[tuple[TreePath, torch.Tensor]] = []
    trees: list[Tree] = []
    for position, item in enumerate(args):
        kind = type(item)
        if kind is _TENSOR or kind is _PARAMETER:
            found.append((_PATHS[position] if position < len(_PATHS) else (position,), item))
            trees.append(values.tree_of(item, keep))
        elif kind in PLAIN_TYPES:
            trees.append(item)
        else:
            trees.append(encode(item, values, keep))
            if kind not in LEAVES:
                found += tensors_in(item, (position,))
                in_containers = True
    if not kwargs:
        return tuple(trees), None, found, in_containers
    named: dict[str, Tree] = {}
    for key, item in kwargs.items():
        named[key] = encode(item, values, keep)
        if type(item) not in LEAVES:
            found += tensors_in(item, (key,))
            in_containers = True
    return tuple(trees), named, found, in_containers


def encode(item: Any, values: ValueIds, keep: bool, within: tuple[int, ...] = ()) -> Tree:
    """Return `item` as a tree; every tensor in it becomes a value.

    Args:
        item: what a call was given or returned. Containers other than lists, tuples, mappings and dataclasses are
            named, not entered, as is one that it holds itself, or that is `containers.DEEPEST` others deep.
        values: gives a tensor its value id.
        keep: whether the data of its tensors are kept.
        within: ids of the containers that it is in.
    """
    kind = type(item)
    if kind is _TENSOR or kind is _PARAMETER:
        return values.tree_of(item, keep)
    if kind in PLAIN_TYPES:
        return item
    if kind is int:
        return _encode_int(item)
    if kind in CONSTANTS:
        return _encode_constant(item)
    if isinstance(item, _TENSOR):
        return values.tree_of(item, keep)
    if isinstance(item, (list, tuple)):  # torch.Size and named tuples too
        tag = TREE_LIST if isinstance(item, list) else TREE_TUPLE
        if is_too_deep(item, within):
            return _name_of(item)
        if keep and kind is list and len(item) >= _MANY and isinstance(item[0], torch.Tensor):
            values.hold()
            try:
                return _encode_entries(tag, item, values, keep, within)
            finally:
                values.release()
        return _encode_entries(tag, item, values, keep, within)
    if is_mapping(item):
        return _name_of(item) if is_too_deep(item, within) else _encode_mapping(item, values, keep, within)
    return _encode_other(item)


def encode_leaf(item: Any) -> Tree:
    """Return something that is no tensor and holds nothing else as a tree."""
    kind = type(item)
    if kind in PLAIN_TYPES:
        return item
    if kind is int:
        return _encode_int(item)
    return _encode_constant(item) if kind in CONSTANTS else _encode_other(item)


def _encode_entries(
    tag: int, item: list[Any] | tuple[Any, ...], values: ValueIds, keep: bool, within: tuple[int, ...]
) -> Tree:
    inner = (*within, id(item))
    tree: list[Tree] = [tag]
    for entry in entries_of(item):
        kind = type(entry)
        is_plain = kind in PLAIN_TYPES or (kind is int and is_int64(entry))
        tree.append(entry if is_plain else encode(entry, values, keep, inner))
    return tuple(tree)


def _encode_int(item: int) -> Tree:
    return item if is_int64(item) else (TREE_BYTES, repr_of(item))


def _name_of(item: Any) -> Tree:
    kind = type(item)
    return (TREE_OBJECT, f"{kind.__module__}.{kind.__qualname__}")


def _encode_mapping(item: Any, values: ValueIds, keep: bool, within: tuple[int, ...]) -> Tree:
    tree: list[Tree] = [TREE_DICT]
    inner = (*within, id(item))
    items = items_of(item)
    if items is None:
        return _name_of(item)
    for key, entry in items:
        tree += (key, encode(entry, values, keep, inner))
    return tuple(tree)


def _encode_constant(item: Any) -> Tree:
    tree = _constants.get(item)
    if tree is None:
        tag, prefix = _CONSTANT_TREES[type(item)]
        tree = _constants[item] = (tag, str(item).removeprefix(prefix))
    return tree


def _encode_other(item: Any) -> Tree:
    if isinstance(item, torch.Generator):
        return (TREE_GENERATOR, str(item.device), _seed_of(item))
    if isinstance(item, complex):
        number = complex.__pos__(item)
        return (TREE_COMPLEX, number.real, number.imag)
    if isinstance(item, (bool, int, float, str)) and not isinstance(item, (torch.SymInt, torch.SymFloat)):
        return _plain_of(item)
    if isinstance(item, (slice, range, type(Ellipsis))):
        return (TREE_BYTES, repr_of(item)) if not _holds_tensor(item) else (TREE_OBJECT, "builtins.slice")
    described = describe(item)
    if described is not None:
        return described
    return _name_of(item)


def _plain_of(item: Any) -> Tree:
    """A subclass of a plain type, an enum among them, as that plain type: by its methods, not the program's own."""
    if isinstance(item, bool):
        return bool(item)
    if isinstance(item, int):
        return _encode_int(int.__index__(item))
    if isinstance(item, float):
        return float.__float__(item)
    if isinstance(item, str):
        return str.__str__(item)
    raise AssertionError(item)


def _holds_tensor(item: Any) -> bool:
    return isinstance(item, slice) and any(
        isinstance(part, torch.Tensor) for part in (item.start, item.stop, item.step)
    )


def _seed_of(generator: torch.Generator) -> int | None:
    try:
        return int(generator.initial_seed())
    except RuntimeError:  # a device whose generator is not initialised
        return None
