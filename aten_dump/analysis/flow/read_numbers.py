"""Numbers that a program read of tensors (``item()``, ``float()``) and gave to later calls.

Theory of operation
    Data flows through Python too: a norm is read, a factor is computed of it, a call is given the factor. Numbers that
    a pair of calls returned are the same thing if what both were given is; who is given one of them, bit for bit, is
    given the same. What Python computed of them is not recorded. A number counts as computed if it is at most so many
    times further from the baseline's as rounding has put numbers apart that were read before, in this step or the one
    before; but not if somebody wrote it down, which few digits tell. That is an estimate, and counted as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch

from ...dump import Call, RankDump
from ..evidence.noise_floors import Limits
from ..evidence.states import WORSE, Inputs, State, inputs_of
from .argument_differences import ArgumentDifference, argument_differences, numbers_in

AMPLIFIES: Final = 8.0  # honest arithmetic may put numbers so many times further apart than those it was done on
_GROWTH: Final = 2.0  # of what counts as rounding, times the root of the ops that a number went through
_OF_STEPS: Final = 8.0  # of one that was read in the step before, times the root of the number of steps
_WRITTEN: Final = 8  # digits that a number has at the most which a person wrote

COMPUTED: Final = "computed in Python, it seems, of numbers that were read of tensors before and differ by rounding"


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of the numbers that a pair of calls was given and that are not the same."""

    states: tuple[State, ...] = ()
    computed: bool = False  # one of them is no number that was read: that it is honest is an estimate

    def added_to(self, inputs: Inputs) -> Inputs:
        """Return what is known of all inputs, these numbers among them."""
        found = inputs_of(self.states)
        worst = max(inputs.worst, found.worst, key=lambda status: WORSE[status])
        return replace(inputs, worst=worst, error=max(inputs.error, found.error), depth=max(inputs.depth, found.depth))


class ReadNumbers:
    """The numbers that were read so far of both sides."""

    def __init__(self) -> None:
        self._read: dict[tuple[float, float], State] = {}  # those that are not the same: (the target's, the baseline's)
        self._apart = 0.0  # the furthest that rounding has put two of them apart, over the larger one
        self._before: Callable[[], tuple[RankDump, RankDump] | None] | None = None

    def set_before(self, find: Callable[[], tuple[RankDump, RankDump] | None]) -> None:
        """Take what finds the step before of both sides; it is looked at when a number differs."""
        self._before = find

    def note(self, target: Call, baseline: Call, inputs: Inputs) -> None:
        """Take the numbers that a pair of calls returned, and what is known of what these were given."""
        for pair in zip(numbers_in(target.outputs), numbers_in(baseline.outputs), strict=False):
            self._take(pair, inputs, _GROWTH * math.sqrt(1 + inputs.depth) * _rounding(target, baseline))

    def _inherit(self) -> None:
        """Take the numbers that were read in the step before, where both sides read as many."""
        ranks, self._before = self._before() if self._before is not None else None, None
        if ranks is None:
            return
        target, baseline = ranks
        ours, theirs = ([call for call in rank.calls if [*numbers_in(call.outputs)]] for rank in ranks)
        if [call.op for call in ours] != [call.op for call in theirs]:
            return
        inputs = inputs_of([State("within")])
        for one, other in zip(ours, theirs, strict=True):
            limit = _OF_STEPS * math.sqrt(1 + max(target.step, baseline.step)) * _rounding(one, other)
            for pair in zip(numbers_in(one.outputs), numbers_in(other.outputs), strict=False):
                self._take(pair, inputs, limit)

    def _take(self, pair: tuple[float, float], inputs: Inputs, rounding: float) -> None:
        apart = relative_distance(*pair)
        if not apart:
            return
        self._read[pair] = State(inputs.worst, apart, inputs.depth + 1, undefined=inputs.undefined)
        if inputs.agree and apart <= rounding:
            self._apart = max(self._apart, apart)

    def tell(self, target: Call, baseline: Call) -> Told:
        """Return what is known of the numbers that differ in what both calls were given, and that were read."""
        if not self._read:
            return Told()
        differences = argument_differences(target, baseline)
        numbers = [pair for difference in differences if self.explain(difference) for pair in difference.numbers]
        computed = [pair for pair in numbers if pair not in self._read]
        states = [self._read.get(pair) or State("within", relative_distance(*pair)) for pair in numbers]
        return Told(tuple(states), bool(computed))

    def explain(self, difference: ArgumentDifference) -> bool:
        """Return True if all that differs of an argument are numbers that came of numbers that were read."""
        if not difference.numbers:
            return False
        self._inherit()
        return all(pair in self._read or self._is_computed(*pair) for pair in difference.numbers)

    def counterparts(self, targets: set[float], baselines: set[float]) -> dict[float, float]:
        """Return which of the target's numbers stand for some of the baseline's, as they came of numbers read."""
        found: dict[float, float] = {}
        for number in baselines - targets if targets else ():
            self._inherit()
            alike = [t for t in targets - baselines if (t, number) in self._read or self._is_computed(t, number)]
            if len(alike) == 1:
                found[number] = alike[0]
        return found

    def _is_computed(self, target: float, baseline: float) -> bool:
        if is_written(target) or is_written(baseline):
            return False
        return relative_distance(target, baseline) <= AMPLIFIES * self._apart


def relative_distance(one: float, other: float) -> float:
    """Return how far two numbers are apart, over the larger one."""
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if math.isfinite(largest) and largest else 0.0 if one == other else math.inf


def is_written(number: float) -> bool:
    """Return True if a number has as few digits as one in a program's text."""
    digits = repr(number).partition("e")[0].lstrip("-").replace(".", "").strip("0")
    return len(digits) <= _WRITTEN


def _rounding(*calls: Call) -> float:
    """Return the rounding, as a relative error, of the coarsest dtype among what calls were given."""
    given = [value.dtype for call in calls for _, value in call.input_values() if value.is_floating]
    return max((Limits.of(dtype).rel_l2 for dtype in given), default=Limits.of(torch.float64).rel_l2)
