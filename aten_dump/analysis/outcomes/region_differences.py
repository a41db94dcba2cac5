"""Calls of both sides that stand against each other and differ: in words, and as what is the same in each layer."""

from __future__ import annotations

from collections.abc import Iterable

from ...dump import Call
from ..flow.argument_differences import ArgumentDifference, argument_differences, numbers_given
from ..flow.cones import Cone
from ..flow.regions import Meaning

_Regions = Iterable[tuple[Cone, Cone]]


class Accused:
    """Differences that are findings: where a later layer of the program has one again, less is tried to explain it."""

    def __init__(self) -> None:
        self._found: set[tuple[object, ...]] = set()

    def add(self, call: Call, differences: Iterable[ArgumentDifference], regions: _Regions = ()) -> None:
        """Take a difference that is a finding; see `has`."""
        self._found.add(_signature(call, differences, regions))

    def has(self, call: Call, differences: Iterable[ArgumentDifference], regions: _Regions) -> bool:
        """Tell whether one was taken that the same line of a program would make: the same ops and numbers.

        Args:
            call: the target's, at which the difference shows.
            differences: of its arguments.
            regions: the calls behind those of its inputs that differ.
        """
        return _signature(call, differences, regions) in self._found


def _signature(call: Call, differences: Iterable[ArgumentDifference], regions: _Regions) -> tuple[object, ...]:
    calls = (call for cones in regions for cone in cones for call in (*cone.calls, None))
    ops = ((call.op, *numbers_given(call)) if call is not None else None for call in calls)
    return call.op, call.phase, *map(str, differences), *ops


def region_text(meaning: Meaning) -> str:
    """Return which calls stand against which, as a clause."""
    assert meaning.cones is not None
    if not (meaning.cones[0].pieces or meaning.cones[1].pieces):
        values = [cone.values[0] for cone in meaning.cones]
        made = [_maker_text(value) for value in values]
        if made[0] == made[1]:  # the parts of a split, the values and the indices of topk
            made = [_result_text(value) for value in values]
        return f"it reads {made[0]}, in the baseline {made[1]}"
    ours, theirs = (cone.calls for cone in meaning.cones)
    text = f"{_names(ours)} in the target stand against {_names(theirs)} in the baseline"
    if len(ours) == len(theirs) == 1 and ours[0].op == theirs[0].op:
        text = ": ".join((text, *map(str, argument_differences(ours[0], theirs[0])[:1])))
    return text


def _maker_text(value: object) -> str:
    producer = getattr(value, "producer", None)
    return f"what {producer[0].name} made" if producer else "what came from outside the step"


def _result_text(value: object) -> str:
    producer = getattr(value, "producer", None)
    return f"{producer[1]} of {producer[0].name}" if producer else _maker_text(value)


def _names(calls: tuple[Call, ...]) -> str:
    if not calls:
        return "no ops"
    shown = ", ".join(call.name for call in calls[:6])
    return shown if len(calls) <= 6 else f"{shown} and {len(calls) - 6} more"
