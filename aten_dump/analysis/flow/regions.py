"""Two values that stand at one place: do the calls behind both mean the same?

Theory of operation
    Behind a value lie calls whose results have no counterpart yet: a fused op on one side, its parts on the other. Its
    *cone* is walked back to values that have one: the cut. Both cones are run in float64 from the *target's* values at
    the cut. What is left of a difference is one of meaning (a missing bias, another scale), whatever the noise of what
    came before. Where only one cone can be run again, its outcome is held against what the other side recorded.

    That holds if both start from the same values. Where one side starts from x and the other from a rounded silu(x),
    the rounding would show; so the value that was made last is replaced by what its call read, on the side
    that has it alone, until both start alike. A weight in half precision and a transposed view of it are one
    start: behind them lies the weight in float32, which is not rounded. Constants that one side alone has are as exact
    as their dtype. What is left of a difference may still be the rounding of what both start from; so where it is small
    both cones start from further back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch

from ...dump import Value
from ...errors import AtenDumpError, FormatError, MissingDataError, ReplayError
from ..distance.float64_results import are_near, is_as_large, is_same, is_shaken_as_far, shake
from ..distance.metrics import measure
from ..rerun.rounding_error import SUSPECT
from ..rerun.rounding_error import measure as measure_rounding
from ..rerun.run_region import laid, run_region, start_tensors
from .argument_differences import numbers_given
from .cones import MOST_CALLS, CommonStart, Cone, GrowingCone, only_on_one_side
from .counterparts import Counterparts, Side
from .data_flow import DataFlow

NEARLY: Final = 1e-6  # relative L2 of what the rounding of float32 may leave


Verdict = Literal["same", "differs", "unknown"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """Whether two cones are the same function, and of what."""

    verdict: Verdict
    error: float = 0.0  # relative L2 between both, in float64
    why: str = ""  # why it is unknown
    cones: tuple[Cone, Cone] | None = None
    estimated: bool = False  # numbers that seem to come of numbers that were read took the place of the baseline's


class Regions:
    """Finds and compares cones; each comparison is made once."""

    def __init__(
        self,
        flows: tuple[DataFlow, DataFlow],
        known: Counterparts,
        tie: Callable[[Side, Value], None],
        tie_alike: Callable[[Sequence[Value], Sequence[Value]], None],
        match_numbers: Callable[[set[float], set[float]], dict[float, float]] = lambda targets, baselines: {},
    ) -> None:
        """Prepare to compare.

        Args:
            flows: the target's and the baseline's.
            known: the counterparts that are known.
            tie: looks for the counterpart of a value from outside that has none yet.
            tie_alike: finds out which of such values of both sides, all behind one place and beside a counterpart of
                their shape, are counterparts.
            match_numbers: finds out which numbers that the target's calls were given stand for some of the baseline's,
                as both were read of tensors.
        """
        self._flows = flows
        self._known = known
        self._tie = tie
        self._tie_alike = tie_alike
        self._match_numbers = match_numbers
        self._meanings: dict[tuple[object, ...], Meaning] = {}
        self._widens: dict[tuple[Side, int], bool] = {}

    def cone(self, side: Side, values: Sequence[Value]) -> Cone:
        """Return the cone of some values, down to values that have a counterpart or come from outside."""
        growing = GrowingCone(side, self._flows[side], self._known, values)
        growing.grow()
        return growing.cone()

    def compare(self, targets: Sequence[Value], baselines: Sequence[Value]) -> Meaning:
        """Tell whether the values of one side mean what those of the other do, one by one."""
        both = self._grown(targets, baselines)
        cones = both.as_they_are()
        if max(len(cone.pieces) for cone in cones) > MOST_CALLS:
            return Meaning("unknown", why="the regions are too large to run again while comparing", cones=cones)
        widened = both.cones()
        key = tuple(cone.key for cone in widened)
        if key not in self._meanings:
            numbers = self._numbers(widened)
            meaning = self._compare(cones, widened, numbers)
            if meaning.verdict == "differs" and meaning.error <= NEARLY:
                again = self._from_further_back(both, cones, numbers)
                meaning = next((found for found in again if found.verdict == "same"), meaning)
            self._meanings[key] = replace(meaning, estimated=bool(numbers))
        return self._meanings[key]

    def compare_from_further_back(self, target: Value, baseline: Value) -> Iterator[Meaning]:
        """Compare two values by what calls behind their common start make of what they were given, then by more calls.

        A start was rounded to its dtype when it was recorded. Where one side takes it, and the other the numbers that
        it stands for, they differ by that: a normalized vector's squares add up to 1 only where the division is run,
        too.
        """
        both = self._grown([target], [baseline])
        cones = both.as_they_are()
        numbers = self._numbers(both.cones())
        for meaning in self._from_further_back(both, cones, numbers):
            yield replace(meaning, estimated=bool(numbers))

    def _from_further_back(
        self, both: CommonStart, cones: tuple[Cone, Cone], numbers: Mapping[float, float]
    ) -> Iterator[Meaning]:
        for further in both.further_back():
            if max(len(cone.pieces) for cone in further) > MOST_CALLS:
                return
            try:
                one, other = _outcomes(further, self._starts(further), numbers)
            except AtenDumpError:
                return
            if isinstance(one, str) or isinstance(other, str):
                return
            error = max(map(_error, one, other), default=0.0)
            same = all(
                x.shape == y.shape and is_same(v, x, y) for v, x, y in zip(cones[0].values, one, other, strict=True)
            )
            yield Meaning("same" if same else "differs", error, cones=cones)

    def _grown(self, targets: Sequence[Value], baselines: Sequence[Value]) -> CommonStart:
        """Return the cones of some values of each side, with the counterparts of what they start from looked for."""
        sides = (
            GrowingCone(0, self._flows[0], self._known, targets),
            GrowingCone(1, self._flows[1], self._known, baselines),
        )
        for growing in sides:
            growing.grow()
            self._tie_sources(growing)
        shapes = self._shapes_in_common(sides)
        self._tie_alike(*([v for v in self._unknown_sources(g) if tuple(v.shape) in shapes] for g in sides))
        return CommonStart(sides, self._flows, self._known, self._widens)

    def mean_the_same(self, target: Value, baseline: Value) -> bool:
        """Tell whether two values are known to mean the same."""
        return self.compare([target], [baseline]).verdict == "same"

    def _tie_sources(self, growing: GrowingCone) -> None:
        for value in self._unknown_sources(growing):
            self._tie(growing.side, value)

    def _unknown_sources(self, growing: GrowingCone) -> list[Value]:
        flow = self._flows[growing.side]
        return [v for v in growing.cut.values() if not self._known.is_known(growing.side, v) and flow.maker(v) is None]

    def _shapes_in_common(self, sides: tuple[GrowingCone, GrowingCone]) -> set[tuple[int, ...]]:
        """Return the shapes of what both cones start from: moments go with their own parameter, or its gradient."""
        theirs = {self._known.class_of(1, value) for value in sides[1].cut.values()}
        return {tuple(v.shape) for v in sides[0].cut.values() if self._known.class_of(0, v) in theirs}

    def _compare(self, cones: tuple[Cone, Cone], widened: tuple[Cone, Cone], numbers: Mapping[float, float]) -> Meaning:
        try:
            starts = self._starts(widened)
        except (ReplayError, MissingDataError, FormatError) as error:
            return Meaning("unknown", why=str(error), cones=cones)
        one, other = _outcomes(widened, starts, numbers)
        if isinstance(other, str):
            return Meaning("unknown", why=other, cones=cones)
        try:
            if isinstance(one, str):
                return self._against_recorded(cones, widened, other, one, numbers)
            return self._judged(cones, widened, one, other, numbers)
        except AtenDumpError as error:
            return Meaning("unknown", why=str(error), cones=cones)

    def _numbers(self, cones: tuple[Cone, Cone]) -> dict[float, float]:
        """Return which numbers take the place of those that the baseline's calls were given."""
        ours, theirs = ({n for call in cone.calls for n in numbers_given(call)} for cone in cones)
        return self._match_numbers(ours, theirs)

    def _starts(
        self, cones: tuple[Cone, Cone], *, shaken: bool = False, all_shaken: int = 0
    ) -> list[dict[Value, torch.Tensor]]:
        """Return what both cones start from: the target's values, also for their counterparts.

        Args:
            cones: the target's and the baseline's.
            shaken: put an error of its dtype's rounding on what one side alone starts from.
            all_shaken: put one on all that they start from, unless 0; the number says which.
        """
        made = [start_tensors(cone.cut) for cone in cones]
        for side, cone in enumerate(cones) if all_shaken else ():
            for value in cone.cut:
                if value.is_floating:
                    shake(made[side][value.id], value, all_shaken)
        ours = {self._known.class_of(0, value): value for value in cones[0].cut}
        for value in cones[1].cut:
            mine = ours.get(self._known.class_of(1, value))
            if mine is not None:
                made[1][value.id] = laid(made[0][mine.id], made[1][value.id])
        if shaken:
            for side, value in self._alone(cones):
                shake(made[side][value.id], value)
        return [{v: tensors[v.id] for v in cone.cut} for cone, tensors in zip(cones, made, strict=True)]

    def _alone(self, cones: tuple[Cone, Cone]) -> list[tuple[Side, Value]]:
        """Return the floating values that only one side starts from: they are as exact as their dtype."""
        alone = only_on_one_side(self._known, [cone.cut for cone in cones])
        return [(side, value) for side, value in alone if value.is_floating]

    def _judged(
        self,
        cones: tuple[Cone, Cone],
        widened: tuple[Cone, Cone],
        one: Sequence[torch.Tensor],
        other: Sequence[torch.Tensor],
        numbers: Mapping[float, float],
    ) -> Meaning:
        unlike = [
            number
            for number, (value, x, y) in enumerate(zip(cones[0].values, one, other, strict=True))
            if x.shape != y.shape or not is_same(value, x, y)
        ]
        if not unlike:
            return Meaning("same", max(map(_error, one, other), default=0.0), cones=cones)
        if all(one[n].shape == other[n].shape for n in unlike) and self._alone(widened):
            shaken = _outcomes(widened, self._starts(widened, shaken=True), numbers)
            calls = max(len(cone.pieces) for cone in widened)
            if all(is_shaken_as_far(one[n], other[n], (shaken[0][n], shaken[1][n]), calls) for n in unlike):
                return Meaning("same", max(map(_error, one, other)), cones=cones)
        if all(self._is_of_rounding(widened, n, (one[n], other[n]), numbers) for n in unlike):
            return Meaning("same", max(map(_error, one, other)), cones=cones)
        return Meaning("differs", _error(one[unlike[0]], other[unlike[0]]), cones=cones)

    def _is_of_rounding(
        self,
        cones: tuple[Cone, Cone],
        which: int,
        results: tuple[torch.Tensor, torch.Tensor],
        numbers: Mapping[float, float],
    ) -> bool:
        """Tell whether results differ by little, and otherwise as soon as what both start from is rounded otherwise.

        What is zero but for rounding (the sum of a softmax's gradient) is added on one side alone. A difference of
        meaning stays what it is, to as many digits as its starts have.
        """
        is_told = all(not self._known.holds_undefined(side, v) for side in (0, 1) for v in cones[side].cut)
        if not is_told or not are_near(*results):
            return False
        apart = results[0] - results[1]
        for seed in (1, 2):
            found = _outcomes(cones, self._starts(cones, all_shaken=seed), numbers)
            if isinstance(found[0], str) or isinstance(found[1], str):
                return False
            if not is_as_large(apart, found[0][which] - found[1][which] - apart):
                return False
        return True

    def _against_recorded(
        self,
        cones: tuple[Cone, Cone],
        widened: tuple[Cone, Cone],
        other: Iterable[torch.Tensor],
        why: str,
        numbers: Mapping[float, float],
    ) -> Meaning:
        """Hold what the target recorded against the baseline's region on the target's inputs.

        What each of the target's calls may be off by adds up, as the root of their number; how rounding on the way
        grows, the baseline's calls tell, each result rounded to its dtype.
        """
        worst, limit = 0.0, SUSPECT * math.sqrt(max(1, len(cones[0].pieces)))
        starts = self._starts(widened)[1]
        rounded = run_region(widened[1].pieces, starts, cones[1].values, rounded=True, numbers=numbers)
        for value, expected, honest in zip(cones[0].values, other, rounded, strict=True):
            recorded = value.tensor()
            if recorded.shape != expected.shape:
                return Meaning("differs", math.inf, cones=cones)
            if not value.is_floating:
                return Meaning("unknown", why=why, cones=cones)
            honest = honest.to_dense().to(recorded.dtype)
            found = measure_rounding("", recorded, honest, expected, cones[1].rounding(recorded.numel()))
            if found.ratio > limit:
                return Meaning("differs", found.error, cones=cones)
            worst = max(worst, found.error)
        return Meaning("same", worst, cones=cones)


def _error(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two results are apart (relative L2)."""
    return measure(one, other).rel_l2 if one.shape == other.shape else math.inf


def _outcomes(
    cones: tuple[Cone, Cone], starts: Sequence[dict[Value, torch.Tensor]], numbers: Mapping[float, float]
) -> tuple[list[torch.Tensor] | str, list[torch.Tensor] | str]:
    """Run both cones, on the target's numbers where the program read them of tensors."""
    return _outcome(cones[0], starts[0]), _outcome(cones[1], starts[1], numbers)


def _outcome(
    cone: Cone, starts: dict[Value, torch.Tensor], numbers: Mapping[float, float] | None = None
) -> list[torch.Tensor] | str:
    """Run a cone; return what it ends in, or why it cannot be run."""
    try:
        return [found.to_dense() for found in run_region(cone.pieces, starts, cone.values, numbers=numbers)]
    except AtenDumpError as error:
        return str(error)
