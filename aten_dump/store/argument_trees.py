"""The tagged trees of arguments and results: what is in one and where, and the same tree with other leaves.

Theory of operation
    A tree is a literal, or a tuple that begins with its tag (``TREE_*`` in `records`). Lists, tuples and dicts
    are its branches, all else are leaves. `fold` is the one walk; `collect` is the same walk written out, as it passes
    over every tree of an index. A slot names one value of one call: ``input.1``, ``input.0.2`` (list item),
    ``input.alpha`` (keyword), ``output.0``, ``mutated.self``. Slots are made and resolved by walking a tree, so that
    keys may hold dots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from .records import TREE_DICT, TREE_LIST, TREE_TUPLE, TREE_VALUE, Call, Tree

Result = TypeVar("Result")


def fold(tree: Tree, leaf: Callable[[Tree], Result], branch: Callable[[Tree, list[Result]], Result]) -> Result:
    """Make something of a tree, from its leaves up.

    Args:
        tree: as in a record.
        leaf: makes something of a literal or of a tagged tuple that is no list, tuple or dict.
        branch: makes something of a list, tuple or dict, and of what was made of its items.
    """
    if type(tree) is not tuple or tree[0] not in (TREE_LIST, TREE_TUPLE, TREE_DICT):
        return leaf(tree)
    items = tree[2::2] if tree[0] == TREE_DICT else tree[1:]
    return branch(tree, [fold(item, leaf, branch) if type(item) is tuple else leaf(item) for item in items])


def with_leaves(tree: Tree, leaf: Callable[[Tree], Any]) -> Tree:
    """Return a tree with other leaves; keys of dicts stay."""
    return fold(tree, leaf, _rebuilt)


def _rebuilt(tree: Tree, items: list[Any]) -> Tree:
    if tree[0] != TREE_DICT:
        return (tree[0], *items)
    return (TREE_DICT, *(part for pair in zip(tree[1::2], items, strict=False) for part in pair))


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


def input_ids(call: Call) -> list[int]:
    """Return the value ids of a call's arguments, in order."""
    found: list[int] = []
    for tree in call.args:
        if type(tree) is tuple:
            collect(tree, found)
    if call.kwargs:
        for tree in call.kwargs.values():
            collect(tree, found)
    return found


def result_ids(call: Call) -> list[int]:
    """Return the value ids of a call's outputs, then of what it wrote in place."""
    found: list[int] = []
    collect(call.outputs, found)
    if call.written:
        for tree in call.written[1::2]:
            collect(tree, found)
    return found


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
    if type(tree) is not tuple:
        return
    tag = tree[0]
    if tag == TREE_VALUE:
        yield prefix, tree[1]
    elif tag in (TREE_LIST, TREE_TUPLE, TREE_DICT):
        named = zip(tree[1::2], tree[2::2], strict=False) if tag == TREE_DICT else enumerate(tree[1:])
        for name, item in named:
            if type(item) is tuple:  # the ranks of a group are a thousand literals
                yield from slots(item, f"{prefix}.{name}")


def output_slots(outputs: Tree) -> Iterator[tuple[str, int]]:
    """Yield (slot, value id) of a call's outputs; a single value is ``output.0``."""
    return slots(outputs, "output" if items(outputs) is not None else "output.0")


def written_slots(written: Sequence[Any] | None) -> Iterator[tuple[str, int]]:
    """Yield (slot, value id) of the arguments that a call wrote in place: names and trees in turn."""
    written = written or ()
    for name, tree in zip(written[::2], written[1::2], strict=False):
        yield from slots(tree, f"mutated.{name}")


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
