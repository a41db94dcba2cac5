"""The tagged trees that arguments and results of calls are recorded as: see TREE_* in `records`."""

from __future__ import annotations

from typing import Any

TreePath = tuple[Any, ...]  # steps from the root of a tree: positions and keys
