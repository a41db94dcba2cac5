"""Which vectors of the baseline's tensors the target has, and what is left of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from .descriptions import noun_of, one_number, ranges_text
from .layouts import Layout
from .profiles import Profile, View
from .weight_records import Weight


class Coverage:
    """Vectors of tensors by name, as they are found."""

    def __init__(self) -> None:
        self._found: dict[str, dict[View, set[int]]] = {}
        self._pieces: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def add(self, layout: Layout) -> None:
        """Take in the vectors that a tensor of the target is made of."""
        for piece in layout.pieces:
            name = piece.source.name
            self._pieces[name] += 1
            self._found.setdefault(name, {}).setdefault(piece.view, set()).update(piece.indexes.tolist())

    def left_over(self, profiles: Mapping[str, Profile]) -> Iterator[Weight]:
        """Yield for each tensor the vectors that no tensor of the target has; none if all are found."""
        for name, views in self._found.items():
            source = profiles[name]
            _, count, view, places = min((_rest(source, *item) for item in views.items()), key=lambda rest: rest[:2])
            if not count:
                continue
            where = f"{noun_of(view, source.shape)} {ranges_text(places)}"
            number = one_number(view.cut(source.read()), places)
            if number is None:
                text = f"missing: {where} are in no tensor of the target"
                yield Weight((), (name,), ("missing",), text, False)
            elif self._pieces[name] > 1:  # the only tensor that has vectors of it says so itself
                text = f"padded: {where} are {number:g}, and in no tensor of the target"
                yield Weight((), (name,), ("padded",), text)


def _rest(source: Profile, view: View, found: set[int]) -> tuple[int, int, View, np.ndarray]:
    """Return how many vectors are left that hold something, and in all; and these, or the empty ones if all are."""
    norms = source.norms(view)
    is_left = np.ones(len(norms), dtype=bool)
    is_left[list(found)] = False
    left = np.flatnonzero(is_left)
    filled = left[norms[left] > 0]
    return len(filled), len(left), view, filled if len(filled) else left
