"""The call at which the target loses precision that the baseline keeps.

Theory of operation
    Both are the same function, and each kernel does what it is to do. Yet an end may be far from its meaning: a table
    of rotations was kept in bfloat16, and positions times its rounded frequencies are other angles. Of each value its
    distance from its meaning is known, on both sides. Rounding that both have is the price of their dtype. What is
    `_FACTOR` times as far as its counterpart, and farther than rounding at each op explains, while what went in was
    not, is where precision was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ...dump import Call, Value
from ..cone.cone import cone_of
from ..ends.ends import End
from ..evaluation.evaluation import EvaluatedStep, Evaluation
from ..sources.stand_ins import Sources
from .distances import Distances, exact_sources

BUDGET: Final = 0.1  # relative L2 of an end from its meaning: gradients of honest bfloat16 training are at most 0.06
_FACTOR: Final = 8.0  # times as far from its meaning as the counterpart: precision is lost at this call
_CANCELLED: Final = 1e-9  # of the norm of what went in
_END_FACTOR: Final = 2.0  # times as far: an end that suffers from it


@dataclass(frozen=True, slots=True)
class LostPrecision:
    """Where precision is lost, and what that does to an end."""

    call: Call
    slot: str
    value: Value
    partner: tuple[Call, Value] | None  # of the baseline
    given: float  # distance of what the call read
    made: float  # distance of its result
    kept: float  # distance of the baseline's result
    end: str
    end_distance: float
    baseline_end: float


class PrecisionSearch:
    """Looks for the call at which precision is lost."""

    def __init__(
        self,
        sides: tuple[Evaluation, Evaluation],
        steps: tuple[EvaluatedStep, EvaluatedStep],
        sources: Sources,
        budget: float,
    ) -> None:
        """Take both sides as they were evaluated from the same sources, with their numbers."""
        self._sides = sides
        self._own = tuple(Distances(step, exact_sources(sources.pairs, side)) for side, step in enumerate(steps))
        self._budget = budget

    def find(self, ends: tuple[Sequence[End], Sequence[End]]) -> LostPrecision | None:
        """Return where the first end, that is farther from its meaning than the budget, lost its precision."""
        for end, far, near in self._far_ends(*ends):
            found = self._behind(end, far, near)
            if found is not None:
                return found
        return None

    def _far_ends(self, ours: Sequence[End], theirs: Sequence[End]) -> Iterator[tuple[End, float, float]]:
        partners = {end.number: end for end in theirs if end.number is not None}
        for end in ours:
            partner = None if end.number is None else partners.get(end.number)
            is_update = end.kind == "left"  # an optimizer divides by the size of gradients, be they rounding alone
            if partner is not None and not is_update and not self._is_cancelled(end.value):
                far, near = self._own[0].of(end.value), self._own[1].of(partner.value)
                if far > self._budget and far > _END_FACTOR * near * self._coarser():
                    yield end, far, near

    def _is_cancelled(self, value: Value) -> bool:
        """Return True if what makes a value is given far more than is left of it: then all of it is rounding."""
        evaluation = self._own[0].evaluation
        writer = evaluation.flow.writer(value)
        known = [evaluation.signatures.get(v.id) for _, v in (evaluation.flow.reads(writer[0]) if writer else ())]
        given = max((one.norm for one in known if one is not None), default=0.0)
        made = evaluation.signatures.get(value.id if writer is None else writer[2].id)
        return made is not None and made.norm <= _CANCELLED * given

    def _coarser(self) -> float:
        """Return how much coarser than the baseline the target rounds what most of its results are."""
        ours, theirs = (_coarsest(evaluation) for evaluation in self._sides)
        return max(1.0, ours / theirs)

    def _behind(self, end: End, far: float, near: float) -> LostPrecision | None:
        """Return the first call behind an end that makes its result far, of what was near."""
        allowed = _FACTOR * self._coarser()
        flow = self._sides[0].flow
        for _, call in sorted(cone_of(self._sides[0], (), [end.value]).calls.items()):
            for slot, value in flow.results(call):
                made = self._own[0].by_value.get(value.id)
                partner = self._partner(value)
                if made is None or partner is None or made < self._budget / _FACTOR:
                    continue
                kept, given = self._own[1].of(partner[1]), self._own[0].given(call)
                if made > allowed * kept and given < made / 2 and made > self._own[0].explained(value):
                    return LostPrecision(call, slot, value, partner, given, made, kept, end.name, far, near)
        return None

    def _partner(self, value: Value) -> tuple[Call, Value] | None:
        baseline = self._sides[1]
        for held in baseline.holders.get(self._sides[0].numbers.get(value.id, 0), ()):
            other = baseline.flow.rank.value_by_id(held)
            maker = baseline.flow.maker(other)
            if maker is not None:
                return maker, other
        return None


def _coarsest(evaluation: Evaluation) -> float:
    """Return the eps of the dtype that most floating results have."""
    counts: dict[torch.dtype, int] = {}
    for call in evaluation.flow.calls():
        for _, value in evaluation.flow.results(call):
            if value.is_floating and not value.dtype.is_complex:
                counts[value.dtype] = counts.get(value.dtype, 0) + 1
    return torch.finfo(max(counts, key=counts.__getitem__)).eps if counts else 1.0
