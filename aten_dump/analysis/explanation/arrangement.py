"""Which rows of the target's values are which rows of the baseline's, where the work is laid out otherwise.

Theory of operation
    Packed documents, a padded batch, micro-batches and a reordered batch are the same rows in other places. What two
    calls at one place make has such rows if the places are the same for all of them: each value leaves fewer places
    for a row. Where a row that had places has none left, the two calls do not make the same. The places that were left
    before say what the target should have there.
    A row is known by two random sums over its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

_MOST_PAIRS: Final = 1 << 22  # of a row with a row, that are held against each other
_ALIKE: Final = 1e-9  # relative to the norm of the largest row
_SEED: Final = 5


class RowSums(NamedTuple):
    """What is kept of the rows of a tensor.

    Attributes:
        sums: of each row, float64[rows, 2].
        size: the elements of a row.
    """

    sums: torch.Tensor
    size: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> RowSums:
        """Read a tensor [..., size] with at least two dimensions."""
        rows = tensor.detach().to(torch.float64).reshape(-1, tensor.shape[-1])
        weights = torch.randn(rows.shape[1], 2, dtype=torch.float64, generator=torch.Generator().manual_seed(_SEED))
        return cls(rows @ weights, rows.shape[1])


class Taken(NamedTuple):
    """What is known of two values.

    Attributes:
        is_same: the rows of the target's are rows of the baseline's, at places that were left.
        rows: for each row of the target the number of the baseline's row that should be there, int64[rows], -1 where
            that is not known; None if nothing is known.
    """

    is_same: bool
    rows: torch.Tensor | None


class Arrangement:
    """Narrows down which row of one side is which row of the other, value by value."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], torch.Tensor] = {}  # by rows of both sides: bool[rows, rows there]
        self._chosen: dict[tuple[int, int], torch.Tensor] = {}  # of these, one for each row

    def take(self, ours: RowSums, theirs: RowSums) -> Taken:
        """Take what two calls at one place make, in execution order.

        Args:
            ours: of the target.
            theirs: of the baseline.
        """
        rows = len(ours.sums), len(theirs.sums)
        if ours.size != theirs.size or not can_hold(rows):
            return Taken(False, None)
        alike = alike_rows(ours.sums, theirs.sums, _ALIKE)
        left = self._left.get(rows)
        places = alike.any(1) if left is None else left.any(1)  # others are padding
        narrowed = alike if left is None else torch.where(places[:, None], left & alike, alike)
        has_all = bool(places.any()) and bool(narrowed.any(1)[places].all())
        chosen = None
        if left is not None:
            chosen = self._chosen[rows] = self._chosen[rows] if rows in self._chosen else _chosen(left)
        if has_all and (left is None or not torch.equal(left, narrowed)):
            self._left[rows] = narrowed
            self._chosen.pop(rows, None)
        return Taken(bool(places.all()) if left is None else has_all, chosen)


def alike_rows(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Return which rows are the same, bool[rows, rows there].

    Args:
        ours: what is kept of the target's rows (`RowSums.sums`).
        theirs: of the baseline's.
        tolerance: relative to the largest.
    """
    size = float(max(ours.abs().max(), theirs.abs().max()))
    return (ours[:, None] - theirs[None]).abs().amax(-1) <= tolerance * size


def can_hold(rows: tuple[int, int]) -> bool:
    """Return True if there are not too many rows on both sides to hold each against each."""
    return 0 < rows[0] * rows[1] <= _MOST_PAIRS


def _chosen(left: torch.Tensor) -> torch.Tensor:
    """Choose a place for each row: rows that follow each other do so there too, as long as they can."""
    run = torch.zeros(left.shape[0] + 1, left.shape[1] + 1, dtype=torch.int64)  # how many follow, from a row and place
    for row in reversed(range(left.shape[0])):
        run[row, :-1] = (run[row + 1, 1:] + 1) * left[row]
    found: list[int] = []
    for row in range(left.shape[0]):
        best = int(run[row].argmax())
        after = found[-1] + 1 if found and found[-1] >= 0 else -1
        if after > 0 and run[row, after] == run[row, best]:
            best = after
        found.append(best if run[row, best] else -1)
    return torch.tensor(found)


def laid_in_rows(rows: Sequence[int], contents: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return a tensor with rows of another one: `rows` has their numbers there, -1 for a row of its own."""
    found = own.detach().clone().reshape(-1, own.shape[-1])
    there = torch.tensor(rows)
    is_known = there >= 0
    found[is_known] = contents.reshape(-1, contents.shape[-1])[there[is_known]].to(found.dtype)
    return found.reshape(own.shape)
