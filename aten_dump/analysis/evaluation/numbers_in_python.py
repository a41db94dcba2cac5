"""Matches the numbers that programs read from tensors, and those that they pass to calls.

Theory of operation
    Data flows through Python too: a program reads a norm, computes a factor and passes it to a call. Numbers that both
    sides read from the same value stand for each other. What Python computed from them is not recorded. A number counts
    as computed if the other side's same call gets nearly the same one. The tolerance is a multiple of how far rounding
    separated the numbers that were read earlier, in this step or the one before. It also counts if exactly one number
    of the other side's calls is as close. A number with few digits was written in the program, and never counts. This
    is an estimate, and reported as one. A number from the text of a program is an argument. The same call with another
    one is another function, even if the result hardly shows it (an epsilon): such calls are noted.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from ...dump import Call
from ..signatures.signature import TOLERANCE, Signature, distance, is_same

COMPUTED: Final = "given a number that was computed in Python, it seems, of numbers that were read of tensors before"
_AMPLIFIES: Final = 8.0  # factor by which honest arithmetic may separate numbers further
_WRITTEN: Final = 8  # most digits of a number that a person wrote
_ROUNDING: Final = 8.0  # times the epsilon of a dtype: numbers further apart do not widen the tolerance


@dataclass(frozen=True, slots=True)
class NearCall:
    """A call of each side, the same except for a number, with nearly equal results."""

    target: Call
    baseline: Call
    results: tuple[tuple[int, int], ...]  # ids


@dataclass(slots=True)
class NumbersInPython:
    """The numbers that the target read and passed to calls.

    Attributes:
        apart: the largest relative distance of numbers that both sides read.
        unknown: ids of the target's calls with a number of unknown origin.
    """

    apart: float = 0.0
    unknown: set[int] = field(default_factory=set)
    _read: dict[tuple[int, ...], list[float]] = field(default_factory=dict)  # by numbers of what was read
    _given: dict[Hashable, list[tuple[tuple[float, ...], Call, dict[int, Signature]]]] = field(default_factory=dict)
    _users: dict[float, list[int]] = field(default_factory=dict)  # of computed numbers: the target's calls

    def read(self, of: tuple[int, ...], number: float) -> None:
        """Take a number that the target read from some values."""
        self._read.setdefault(of, []).append(number)

    def read_alike(self, of: tuple[int, ...], number: float, call: Call) -> float | None:
        """Return the number that the target read from the values of a baseline's call."""
        known = self._read.get(of)
        if known is None:
            return None
        apart = _relative_distance(known[0], number)
        if apart <= _ROUNDING * _epsilon(call):
            self.apart = max(self.apart, apart)
        return known[0]

    def note(self, masked: Hashable, floats: tuple[float, ...], call: Call, results: dict[int, Signature]) -> None:
        """Take the numbers that a call of the target got, by its key without them."""
        self._given.setdefault(masked, []).append((floats, call, results))
        for number in floats:
            if not _is_written(number):
                self._users.setdefault(number, []).append(call.id)

    def computed(self, masked: Hashable, floats: tuple[float, ...]) -> dict[float, float]:
        """Return the target's numbers for those of a baseline's call that were computed from numbers read."""
        for ours, call, _ in self._given.get(masked, ()) if self.apart else ():
            others = [(one, other) for one, other in zip(ours, floats, strict=True) if one != other]
            if others and all(self._is_computed(*pair) for pair in others):
                self.unknown.add(call.id)
                return {other: one for one, other in others}
        return self._alike(floats) if self.apart else {}

    def _alike(self, floats: tuple[float, ...]) -> dict[float, float]:
        """Return the target's numbers for those that are close to exactly one of them, in any call."""
        found = {}
        for number in floats:
            alike = [one for one in self._users if self._is_computed(one, number)] if number not in self._users else []
            if len(alike) == 1:
                found[number] = alike[0]
                self.unknown.update(self._users[alike[0]])
        return found

    def _is_computed(self, target: float, baseline: float) -> bool:
        if _is_written(target) or _is_written(baseline):
            return False
        return _relative_distance(target, baseline) <= _AMPLIFIES * self.apart

    def near(
        self, masked: Hashable, floats: tuple[float, ...], call: Call, signatures: Mapping[int, Signature]
    ) -> list[NearCall]:
        """Return the target's call that differs from a baseline's only in a number."""
        known = self._given.get(masked, ())
        if len(known) != 1:
            return []
        ours, target, results = known[0]
        if all(_relative_distance(one, other) <= TOLERANCE for one, other in zip(ours, floats, strict=True)):
            return []
        theirs = [value.id for _, value in call.result_values() if value.id in signatures]
        pairs = tuple(zip(results, theirs, strict=False))
        found = NearCall(target, call, pairs)
        return [found] if is_near(found, results, signatures) else []


def is_near(near: NearCall, target: Mapping[int, Signature], baseline: Mapping[int, Signature]) -> bool:
    """Return True if the results of two calls count as the same, but differ by more than their dtype rounds."""
    pairs = [(target[one], baseline[other]) for one, other in near.results if one in target and other in baseline]
    if not pairs or not all(is_same(*pair) for pair in pairs):
        return False
    epsilon = _epsilon(near.target)
    return any(
        distance(one, other) > epsilon * max(one.norm, other.norm) + 5 * max(one.noise, other.noise)
        for one, other in pairs
    )


def _epsilon(call: Call) -> float:
    """Return the epsilon of the coarsest dtype among a call's inputs."""
    dtypes = [value.dtype for _, value in call.input_values() if value.is_floating]
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)


def _relative_distance(one: float, other: float) -> float:
    """Return the distance of two numbers, relative to the larger one."""
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if math.isfinite(largest) and largest else 0.0 if one == other else math.inf


def _is_written(number: float) -> bool:
    """Return True if a number has few digits, like one in a program's text."""
    digits = repr(number).partition("e")[0].lstrip("-").replace(".", "").strip("0")
    return len(digits) <= _WRITTEN
