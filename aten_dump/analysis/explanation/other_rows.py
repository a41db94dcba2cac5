"""Values of the target that have the baseline's rows in other places, and those that should.

Theory of operation
    What two calls at one place of both programs make is taken in execution order. As long as one arrangement of rows
    holds for all of them (`arrangement.py`), the target has the baseline's rows. Where it does not, the rows that
    should be there are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from typing import Final

import torch

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation
from ..pairing.call_keys import place_of
from .arrangement import Arrangement, RowSums

_SAME_NORM: Final = 1e-9  # relative: two values that may have the same elements
Watch = Callable[[int, Callable[[Value, torch.Tensor], None]], None]


class OtherRows:
    """Finds the rows of both sides, and remembers which values have them."""

    def __init__(self, sides: tuple[Evaluation, Evaluation]) -> None:
        """Take both sides, evaluated."""
        self._sides = sides
        self._same: tuple[set[int], set[int]] = (set(), set())  # numbers of values whose rows lie in other places
        self._met: set[tuple[int | None, int | None]] = (
            set()
        )  # the numbers of both sides' values that have the same rows
        self._other: tuple[set[int], set[int]] = (set(), set())  # of values that should have these rows

    def find(self, odd: Container[int], watch: Watch) -> Iterator[tuple[Value, Value, tuple[int, ...]]]:
        """Yield values of the target, what the baseline has there, and which of its rows should stand in the target's.

        Args:
            odd: the ids of the values that are asked for.
            watch: evaluates a side once more, and calls a function with each value and its tensor.
        """
        places = [_by_place(side) for side in self._sides]
        pairs = [(value, places[1][at]) for at, value in places[0].items() if at in places[1]]
        if not any(one.shape != two.shape or self._may_be_reordered(one, two) for one, two in pairs):
            return
        sums = [sums_of(side, {pair[side].id for pair in pairs}, watch) for side in (0, 1)]
        arrangement = Arrangement()
        for value, like in pairs:
            if value.id not in sums[0] or like.id not in sums[1]:
                continue
            taken = arrangement.take(sums[0][value.id], sums[1][like.id])
            if not taken.is_same and taken.rows is None:
                continue
            for side, one in enumerate((value, like)):
                known = (self._same if taken.is_same else self._other)[side]
                known.update(filter(None, [self._sides[side].numbers.get(one.id)]))
            if taken.is_same:
                self._met.add((self._sides[0].numbers.get(value.id), self._sides[1].numbers.get(like.id)))
            rows = () if taken.rows is None else tuple(taken.rows.tolist())
            if rows and value.id in odd and rows != tuple(range(len(sums[1][like.id].sums))):
                yield value, like, rows

    def _may_be_reordered(self, value: Value, like: Value) -> bool:
        """Return True if two values of one shape are not the same, and may have the same elements in other places."""
        one, other = self._sides[0].signatures.get(value.id), self._sides[1].signatures.get(like.id)
        return (
            one is not None
            and other is not None
            and self._sides[0].numbers.get(value.id) != self._sides[1].numbers.get(like.id)
            and abs(one.norm - other.norm) <= _SAME_NORM * one.norm
        )

    def has(self, value: Value, other: Value) -> bool:
        """Return True if a value of the target, or what it shows, has the rows of one of the baseline's."""
        shown = [self._shown(side, one) for side, one in enumerate((value, other))]
        return any((ours, theirs) in self._met for ours in shown[0] for theirs in shown[1])

    def _shown(self, side: int, value: Value) -> list[int | None]:
        """Return the numbers of a value, and of what it shows."""
        writer = self._sides[side].flow.writer(value)
        shown = (value,) if writer is None else (value, writer[2])
        return [self._sides[side].numbers.get(one.id) for one in shown]

    def are_given_to(self, call: Call) -> bool:
        """Return True if the baseline has all floats that a call of the target reads, some of them in other places."""
        read = [value for _, value in self._sides[0].flow.reads(call) if value.is_floating and len(value.shape) > 1]
        numbers = [self._sides[0].numbers.get(value.id, 0) for value in read]
        held = self._sides[1].holders
        in_rows = [number in self._same[0] or held.get(number) == [] for number in numbers]
        return any(in_rows) and all(one or number in held for one, number in zip(in_rows, numbers, strict=True))

    def known(self, side: int) -> set[int]:
        """Return the numbers of a side's values that the other side has as a whole, or in the same arrangement.

        What is covered by parts of the other side may be so by the wrong ones, and integers of other rows, such as
        places and masks, are others.
        """
        whole = {number for number, held in self._sides[1 - side].holders.items() if held}
        return (whole - self._other[side] - _integers_of(self._sides[side])) | self._same[side]


def sums_of(side: int, wanted: Container[int], watch: Watch) -> Mapping[int, RowSums]:
    """Evaluate a side once more, and return what is kept of the rows of some values, by id."""
    found: dict[int, RowSums] = {}

    def keep(value: Value, tensor: torch.Tensor) -> None:
        if value.id in wanted and tensor.layout is torch.strided and not tensor.is_complex():
            found[value.id] = RowSums.of(tensor)

    watch(side, keep)
    return found


def _by_place(side: Evaluation) -> dict[tuple[Hashable, int], Value]:
    """Return the floats that the calls of a side make, in two dimensions or more, by place, size of a row and turn."""
    made = list(made_in_rows(side))
    keys = ordinals((*place_of(call), value.shape[-1]) for call, _, value in made)
    return {key: value for key, (_, _, value) in zip(keys, made, strict=True)}


def made_in_rows(side: Evaluation) -> Iterator[tuple[Call, str, Value]]:
    """Yield the floats that the calls of a side make, in two dimensions or more, with their slots."""
    for call in side.flow.calls():
        for slot, value in side.flow.results(call):
            if value.is_floating and len(value.shape) > 1 and value.numel and value.layout_name == "strided":
                yield call, slot, value


def _integers_of(side: Evaluation) -> set[int]:
    """Return the numbers of the integers that the calls of a side make."""
    made = (value for call in side.flow.calls() for _, value in call.output_values() if not value.is_floating)
    return {side.numbers[value.id] for value in made if value.id in side.numbers}


def ordinals(keys: Iterable[Hashable]) -> list[tuple[Hashable, int]]:
    """Return each key with how often it came before."""
    counts: Counter[Hashable] = Counter()
    found = []
    for key in keys:
        found.append((key, counts[key]))
        counts[key] += 1
    return found
