"""Walks argument trees as they were encoded: which entries one has, which values, the same tree with other values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...store.argument_trees import collect
from ...store.records import TREE_DICT, TREE_LIST, TREE_TUPLE, TREE_VALUE, Tree, TreePath


def entries(tree: Tree) -> Iterable[tuple[Any, Tree]]:
    """Return the entries of a list, tuple or dict with their keys; nothing for any other tree."""
    if isinstance(tree, tuple):
        if tree[0] in (TREE_LIST, TREE_TUPLE):
            return enumerate(tree[1:])
        if tree[0] == TREE_DICT:
            return zip(tree[1::2], tree[2::2], strict=True)
    return ()


def values_in(trees: Iterable[Tree]) -> list[int]:
    """Return the value ids in some trees, in order."""
    found: list[int] = []
    for tree in trees:
        collect(tree, found)
    return found


def mirror(tree: Tree, found: Mapping[TreePath, Tree], path: TreePath = ()) -> Tree:
    """Return the shape of `tree` with `found[path]` for each value, and None for all else."""
    if not isinstance(tree, tuple):
        return None
    tag = tree[0]
    if tag == TREE_VALUE:
        return found.get(path)
    if tag not in (TREE_LIST, TREE_TUPLE, TREE_DICT):
        return None
    mirrored: list[Tree] = [tag]
    for key, entry in entries(tree):
        if tag == TREE_DICT:
            mirrored.append(key)
        mirrored.append(mirror(entry, found, (*path, key)))
    return tuple(mirrored)
