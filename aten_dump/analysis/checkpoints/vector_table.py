"""A table of the vectors of many tensors, in which those of another tensor are looked up.

Theory of operation
    Vectors of one length are sorted by a cell of their first projection and, within it, by the second. What is the
    same up to rounding lies in the same cell or the next one, so a look-up is two short searches. The other projections
    decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from .profiles import LEAST_LENGTH, Array, Profile, Vectors, View

Indexes: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[Any]]"
_EXACT: Final = 1e-6  # of projections of vectors of norm 1: programs scale and add in float32
_DIGITS: Final = 3  # half units of the last place that rounding moves a projection by, at the most
_APART: Final = 128.0  # between the keys of two cells: more than any second projection
_STRETCH: Final = 2048  # vectors that are looked up at a time
_SAMPLE: Final = 24


@dataclass(frozen=True, slots=True)
class _Entries:
    """The vectors of one length, sorted by key."""

    cell: float
    keys: Array
    directions: Array
    roundings: Array
    groups: Indexes  # of tensor and view
    indexes: Indexes  # of a vector in its view


@dataclass(frozen=True, slots=True)
class Pairs:
    """Vectors of one view that are vectors of others: equal positions belong together."""

    given: Indexes  # of a vector in the view that was looked up
    groups: Indexes
    indexes: Indexes
    signs: Indexes  # -1 where one is the other turned about
    apart: Array  # the greatest distance of their projections

    def only(self, keep: Indexes) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(column[keep] for column in (self.given, self.groups, self.indexes, self.signs, self.apart)))


class VectorTable:
    """The vectors of tensors, by their contents."""

    def __init__(self, profiles: Sequence[Profile], rounding: float) -> None:
        """Take the vectors of tensors; `rounding` is the greatest of what is looked up."""
        self.groups: list[tuple[Profile, Vectors]] = [
            (one, vectors) for one in profiles for vectors in (one.whole, *one.vectors)
        ]
        self._rounding = max([rounding, *(one.rounding for one in profiles)])
        self._by_length: dict[int, list[int]] = {}
        for number, (_, vectors) in enumerate(self.groups):
            if vectors.length >= LEAST_LENGTH:
                self._by_length.setdefault(vectors.length, []).append(number)
        self._entries: dict[int, _Entries] = {}

    def view(self, group: int) -> View:
        """Return the view of a group."""
        return self.groups[group][1].view

    def find(self, vectors: Vectors, rounding: float) -> Pairs:
        """Return which vectors of a view are in the table; those of norm 0 are not looked up."""
        none = np.zeros(0, dtype=np.int64)
        if vectors.length not in self._by_length:
            return Pairs(none, none, none, none, np.zeros(0))
        entries = self._of_length(vectors.length)
        asked = np.flatnonzero(vectors.norms > 0)
        sample = asked[:: max(1, len(asked) // _SAMPLE)]
        parts: list[tuple[Indexes, ...]] = [(none, none, none, np.zeros(0))]
        for sign in (1, -1):
            directions = sign * vectors.directions
            if len(sample) == len(asked) or len(_found(entries, directions, sample, rounding)[0]):
                parts += [
                    (given, places, np.full(len(given), sign), apart)
                    for given, places, apart in _stretches(entries, directions, asked, rounding)
                ]
                known = np.unique(np.concatenate([part[0] for part in parts]))
                asked = np.setdiff1d(asked, known, assume_unique=True)
        given, places, signs, apart = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Pairs(given, entries.groups[places], entries.indexes[places], signs, apart)

    def _of_length(self, length: int) -> _Entries:
        if length not in self._entries:
            numbers = self._by_length[length]
            some = [self.groups[number] for number in numbers]
            directions = np.concatenate([vectors.directions for _, vectors in some])
            counts = [len(vectors.norms) for _, vectors in some]
            roundings = np.repeat([one.rounding for one, _ in some], counts)
            keep = np.flatnonzero(np.concatenate([vectors.norms for _, vectors in some]) > 0)
            cell = 2 * (2 * _DIGITS * self._rounding + _EXACT)
            keys = np.floor(directions[keep, 0] / cell) * _APART + directions[keep, 1]
            order = keep[np.argsort(keys, kind="stable")]
            groups = np.repeat(numbers, counts)
            indexes = np.concatenate([np.arange(count) for count in counts])
            self._entries[length] = _Entries(
                cell, np.sort(keys), directions[order], roundings[order], groups[order], indexes[order]
            )
        return self._entries[length]


def _stretches(
    entries: _Entries, directions: Array, asked: Indexes, rounding: float
) -> Iterator[tuple[Indexes, Indexes, Array]]:
    for start in range(0, len(asked), _STRETCH):
        yield _found(entries, directions, asked[start : start + _STRETCH], rounding)


def _found(entries: _Entries, directions: Array, asked: Indexes, rounding: float) -> tuple[Indexes, Indexes, Array]:
    """Return which of the vectors `asked` are which entries, as pairs, and how far their projections are apart."""
    reach = entries.cell / 2
    given, places = [], []
    cells = np.floor((directions[asked, 0] + [[-reach], [reach]]) / entries.cell)
    for side in range(2):
        keys = cells[side] * _APART + directions[asked, 1]
        starts = np.searchsorted(entries.keys, keys - reach)
        counts = np.searchsorted(entries.keys, keys + reach, side="right") - starts
        if side:
            counts[cells[1] == cells[0]] = 0
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        given.append(np.repeat(asked, counts))
        places.append(np.repeat(starts, counts) + within)
    ones, others = np.concatenate(given), np.concatenate(places)
    apart = np.abs(directions[ones] - entries.directions[others]).max(1) if len(ones) else np.zeros(0)
    near = apart <= _DIGITS * (rounding + entries.roundings[others]) + _EXACT
    return ones[near], others[near], apart[near]
