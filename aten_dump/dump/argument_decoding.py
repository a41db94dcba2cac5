"""Argument trees: from the tagged tuples of an index to Python values, and the slots of the values in them.

A slot names one value of one call: ``input.1``, ``input.0.2`` (list item), ``input.alpha`` (keyword),
``output.0``, ``mutated.self``. Slots are made and resolved by walking a tree, so that keys may hold dots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..errors import FormatError
from ..store.records import (
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
    TREE_VALUE,
    Tree,
)

Device = torch.device | str


@dataclass(frozen=True, slots=True)
class GeneratorRef:
    """A random generator that was passed to a call; `seed` is None where it could not be asked for."""

    device: Device
    seed: int | None


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object that was seen and not recorded further."""

    type_name: str


@dataclass(frozen=True, slots=True)
class ReprRef:
    """The repr of a value that has no form of its own in an index: a large int, an enum, a slice."""

    text: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a source stack; `user` is False in torch, installed packages and the standard library."""

    file: str
    line: int
    function: str
    user: bool


def read_device(text: str) -> Device:
    """Return the torch.device of a name, or the name where this torch does not know the device (``npu:0``)."""
    try:
        return torch.device(text)
    except RuntimeError:
        return text


def _named(kind: type) -> Callable[[Tree], Any]:
    """Return a reader of ``[tag, name]`` whose name is an attribute of torch; unknown names stay text."""

    def read(tree: Tree) -> Any:
        found = getattr(torch, tree[1], None)
        return found if isinstance(found, kind) else ReprRef(f"torch.{tree[1]}")

    return read


_LEAVES: Final[Mapping[int, Callable[[Tree], Any]]] = {
    TREE_DTYPE: _named(torch.dtype),
    TREE_DEVICE: lambda tree: read_device(tree[1]),
    TREE_MEMORY_FORMAT: _named(torch.memory_format),
    TREE_LAYOUT: _named(torch.layout),
    TREE_GENERATOR: lambda tree: GeneratorRef(read_device(tree[1]), tree[2]),
    TREE_COMPLEX: lambda tree: complex(tree[1], tree[2]),
    TREE_OBJECT: lambda tree: ObjectRef(tree[1]),
    TREE_BYTES: lambda tree: ReprRef(tree[1]),
}


def decode(tree: Tree, value: Callable[[int], Any]) -> Any:
    """Turn a tree into Python values.

    Args:
        tree: as in a record.
        value: makes what stands for a tensor, from its value id.

    Returns:
        None, a literal, a list, tuple or dict, or what `value` made.

    Raises:
        FormatError: a tag that this version does not know.
    """
    if not isinstance(tree, tuple):
        return tree
    tag = tree[0]
    if tag == TREE_VALUE:
        return value(tree[1])
    if tag == TREE_LIST:
        return [decode(item, value) for item in tree[1:]]
    if tag == TREE_TUPLE:
        return tuple(decode(item, value) for item in tree[1:])
    if tag == TREE_DICT:
        return {key: decode(item, value) for key, item in zip(tree[1::2], tree[2::2], strict=False)}
    leaf = _LEAVES.get(tag)
    if leaf is None:
        raise FormatError(
            f"an argument tree has tag {tag!r}; known are 0 to {TREE_BYTES}: read it with a newer aten_dump"
        )
    return leaf(tree)


def collect(tree: Tree, found: list[int]) -> None:
    """Append the value ids of a tree to `found`, in order."""
    if type(tree) is not tuple:
        return
    tag = tree[0]
    if tag == TREE_VALUE:
        found.append(tree[1])
    elif tag in (TREE_LIST, TREE_TUPLE):
        for item in tree[1:]:
            if type(item) is tuple:
                collect(item, found)
    elif tag == TREE_DICT:
        for item in tree[2::2]:
            collect(item, found)


def items(tree: Tree) -> Iterator[tuple[str, Tree]] | None:
    """Return the named items of a list, tuple or dict; None for anything else."""
    if not isinstance(tree, tuple):
        return None
    if tree[0] in (TREE_LIST, TREE_TUPLE):
        return ((str(number), item) for number, item in enumerate(tree[1:]))
    if tree[0] == TREE_DICT:
        return ((str(key), item) for key, item in zip(tree[1::2], tree[2::2], strict=False))
    return None


def slots(tree: Tree, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield (slot, value id) for each value of a tree whose own slot is `prefix`."""
    if isinstance(tree, tuple) and tree[0] == TREE_VALUE:
        yield prefix, tree[1]
        return
    for name, item in items(tree) or ():
        yield from slots(item, f"{prefix}.{name}")


def output_slots(outputs: Tree) -> Iterator[tuple[str, int]]:
    """Yield (slot, value id) of a call's outputs; a single value is ``output.0``."""
    return slots(outputs, "output" if items(outputs) is not None else "output.0")


def walk(tree: Tree, steps: str) -> Tree:
    """Follow dotted `steps` into a tree.

    Raises:
        KeyError: no item of that name; the argument is the list of names that would do.
    """
    if not steps:
        return tree
    named = list(items(tree) or ())
    for name, item in sorted(named, key=lambda pair: -len(pair[0])):
        if steps == name:
            return item
        if steps.startswith(name + "."):
            return walk(item, steps[len(name) + 1 :])
    raise KeyError([name for name, _ in named])
