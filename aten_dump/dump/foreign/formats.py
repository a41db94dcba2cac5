"""How other tools' formats are found: each is known by its folders, and read into the records of an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...extensions import READERS, extensions
from .foreign_rank import ForeignRank, Read
from .tensor_files import format_errors

Places = dict[int, dict[int, Path]]  # directories by step and rank


@dataclass(frozen=True, slots=True)
class Reader:
    """A format of another tool.

    Args:
        find: returns the directories of this format below a path, none if it is of another.
        read: reads one of them, given its step, its rank and how many ranks there are.
        layout: what `find` looks for, as a user is shown it: ``step*/rank*/dump.json``.
    """

    find: Callable[[Path], Places]
    read: Read
    layout: str


def foreign_ranks(root: Path) -> dict[int, dict[int, ForeignRank]]:
    """Return the steps and ranks below a path that another tool recorded; empty if there are none.

    Raises:
        FormatError: something there has the name of a table and is none.
        StoreError: it cannot be read.
    """
    for _, reader in extensions(READERS):
        with format_errors(root):
            places = reader.find(root)
        if places:
            return {
                step: {
                    rank: ForeignRank(reader.read, path, step, rank, len(ranks)) for rank, path in sorted(ranks.items())
                }
                for step, ranks in sorted(places.items())
            }
    return {}


def foreign_layouts() -> str:
    """Return which tool writes what, to say what a folder is not."""
    return " or ".join(f"{name} ({reader.layout})" for name, reader in extensions(READERS))
