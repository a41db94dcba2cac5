"""The table of other tools' formats: how each is known, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import mindspore_dump, msprobe_dump
from .foreign_rank import ForeignRank, Read
from .tensor_files import format_errors

Places = dict[int, dict[int, Path]]  # directories by step and rank

# Each finds the directories of its format below a path, none if it is not this format; and reads one of them.
FORMATS: Final[tuple[tuple[Callable[[Path], Places], Read], ...]] = (
    (msprobe_dump.find, msprobe_dump.read),
    (mindspore_dump.find, mindspore_dump.read),
)


def foreign_ranks(root: Path) -> dict[int, dict[int, ForeignRank]]:
    """Return the steps and ranks below a path that another tool recorded; empty if there are none.

    Raises:
        FormatError: something there has the name of a table and is none.
        StoreError: it cannot be read.
    """
    for find, read in FORMATS:
        with format_errors(root):
            places = find(root)
        if places:
            return {
                step: {rank: ForeignRank(read, path, step, rank, len(ranks)) for rank, path in sorted(ranks.items())}
                for step, ranks in sorted(places.items())
            }
    return {}
