"""From argument trees, as an index holds them, to Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..errors import FormatError
from ..store.argument_trees import fold
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
    TREE_VALUE,
    Tree,
)
from ..torch_names import DTYPES, LAYOUTS, MEMORY_FORMATS

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

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class UnknownDevice(str):
    """The name of a device that this torch does not know."""

    __slots__ = ()


def read_device(text: str) -> Device:
    """Return the torch.device of a name, or the name where this torch does not know the device (``npu:0``)."""
    try:
        return torch.device(text)
    except RuntimeError:
        return UnknownDevice(text)


def _named(table: Mapping[str, Any]) -> Callable[[Tree], Any]:
    """Return a reader of ``[tag, name]`` whose name is in a table of torch's; unknown names stay text."""

    def read(tree: Tree) -> Any:
        found = table.get(tree[1])
        return ReprRef(f"torch.{tree[1]}") if found is None else found

    return read


_LEAVES: Final[Mapping[int, Callable[[Tree], Any]]] = {
    TREE_DTYPE: _named(DTYPES),
    TREE_DEVICE: lambda tree: read_device(tree[1]),
    TREE_MEMORY_FORMAT: _named(MEMORY_FORMATS),
    TREE_LAYOUT: _named(LAYOUTS),
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

    def leaf(tree: Tree) -> Any:
        if not isinstance(tree, tuple):
            return tree
        if tree[0] == TREE_VALUE:
            return value(tree[1])
        read = _LEAVES.get(tree[0])
        if read is None:
            raise FormatError(
                f"an argument tree has tag {tree[0]!r}; known are 0 to {TREE_BYTES}: read it with a newer aten_dump"
            )
        return read(tree)

    return fold(tree, leaf, container)


def container(tree: Tree, items: list[Any]) -> Any:
    """Return the list, tuple or dict that a branch of a tree stands for."""
    if tree[0] == TREE_DICT:
        return dict(zip(tree[1::2], items, strict=False))
    return items if tree[0] == TREE_LIST else tuple(items)
