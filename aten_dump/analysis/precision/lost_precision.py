"""The call at which the target loses precision that the baseline keeps.

Theory of operation
    Both are the same function, and each kernel does what it is to do. Yet an end may be far from its meaning: a table
    of rotations was kept in bfloat16, and positions times its rounded frequencies are other angles. Of each value its
    distance from its meaning is known, on both sides. Rounding that both have is the price of their dtype. What is
    `_FACTOR` times as far as its counterpart, and farther than rounding at each op explains, while what went in was
    not, is where precision was lost.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from ...dump import Call, Value
from ..cone.cone import cone_of
from ..ends.ends import End
from ..evaluation.evaluation import JITTER, EvaluatedStep, Evaluation, Shared
from ..evaluation.memory import UNREADABLE
from ..rerun.start_tensors import start_tensors
from ..sources.stand_ins import How, Sources

BUDGET: Final = 0.1  # relative L2 of an end from its meaning, unless another budget is given (docs/comparing.md)
_FACTOR: Final = 8.0  # times as far from its meaning as the counterpart: precision is lost at this call
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

    def __str__(self) -> str:
        factor = f", {self.made / self.given:.2g} times as far" if self.given else ""
        return (
            f"precision is lost here: its inputs are {self.given:.2g} from their meaning in float64, its result is "
            f"{self.made:.2g}{factor}, the baseline's result {self.kept:.2g}; {self.end} is {self.end_distance:.2g} "
            f"from its meaning, in the baseline {self.baseline_end:.2g}"
        )


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
            if partner is not None and not is_update:
                far, near = self._own[0].of(end.value), self._own[1].of(partner.value)
                if far > self._budget and far > _END_FACTOR * near * self._coarser():
                    yield end, far, near

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


class Distances:
    """The distances of one recorded step.

    Attributes:
        evaluation: of the step from its own sources.
        by_value: relative L2 distance of each floating result, by value id.
        meanings: the values that are wanted in float64, by value id.
    """

    def __init__(
        self, step: EvaluatedStep, exact: Mapping[int, torch.Tensor], wanted: Container[int] = frozenset()
    ) -> None:
        """Evaluate a step.

        Args:
            step: a recorded step and rank.
            exact: the contents of sources that it holds with fewer digits than the other side, by value id.
            wanted: ids of values whose meanings are kept.
        """
        self.by_value: dict[int, float] = {}
        self.meanings: dict[int, torch.Tensor] = {}
        self._wanted = wanted
        self._step, self._exact = step, exact
        self._is_scaled = bool(step.loss_scales)
        for number, contents in exact.items():
            self._watch(step.flow.rank.value_by_id(number), contents)
        self.evaluation = Evaluation(step, Shared(), exact, leads=True)
        self.evaluation.watch, self.evaluation.watch_all = self._watch, self._keep
        self.evaluation.run()

    def _watch(self, value: Value, meaning: torch.Tensor) -> None:
        if value.is_floating and value.numel and not (value.undefined or value.opaque):
            try:
                recorded = start_tensors([value])[value.id]
            except UNREADABLE:
                return
            if recorded.shape == meaning.shape:
                self.by_value[value.id] = _distance(recorded, meaning, scaled=self._is_scaled)

    def _keep(self, value: Value, meaning: torch.Tensor) -> None:
        if value.id in self._wanted:
            self.meanings[value.id] = meaning.detach().clone()

    def of(self, value: Value) -> float:
        """Return the distance of a value, of the one that its writer left for a view; 0 for a source."""
        found = self.by_value.get(value.id)
        if found is None:
            writer = self.evaluation.flow.writer(value)
            found = 0.0 if writer is None else self.by_value.get(writer[2].id, 0.0)
        return found

    def explained(self, value: Value) -> float:
        """Return how far from its meaning a result may be as each op before it rounds to its dtype."""
        signature = self.evaluation.signatures.get(value.id)
        noise = self._rounding.get(value.id, math.inf)
        return math.inf if signature is None or not signature.norm else noise / signature.norm

    @cached_property
    def _rounding(self) -> dict[int, float]:
        rounded = Evaluation(self._step, Shared(), self._exact, leads=True, jitter=JITTER)
        rounded.rounds = True
        rounded.run()
        return self.evaluation.noise_beside(rounded)

    def given(self, call: Call) -> float:
        """Return the greatest distance among what a call reads."""
        return max((self.of(value) for _, value in self.evaluation.flow.reads(call)), default=0.0)


def exact_sources(pairs: Sequence[tuple[Value, Value, How]], side: int) -> dict[int, torch.Tensor]:
    """Return the contents of the sources of a side that the other side holds with more digits, by value id."""
    found = {}
    for pair in pairs:
        mine, other = pair[:2] if side == 0 else pair[1::-1]
        if pair[2] == "cast" and torch.finfo(other.dtype).eps < torch.finfo(mine.dtype).eps:
            found[mine.id] = start_tensors([other])[other.id].reshape(mine.shape)
    return found


def _distance(recorded: torch.Tensor, meaning: torch.Tensor, *, scaled: bool = False) -> float:
    """Return the L2 norm of the difference over that of the meaning, of the elements that are finite in both.

    With `scaled`, that of the nearest multiple of what was recorded: the loss may be scaled in the recording.
    """
    if recorded.layout is not torch.strided or meaning.layout is not torch.strided:
        return 0.0
    finite = recorded.isfinite() & meaning.isfinite()
    if not bool(finite.all()):
        recorded, meaning = recorded[finite], meaning[finite]
    if scaled and (square := float((recorded * recorded).sum())):
        recorded = recorded * (float((recorded * meaning).sum()) / square)
    off, size = float((recorded - meaning).norm()), float(meaning.norm())
    return off / size if size else (math.inf if off else 0.0)
