"""How far each recorded result is from its meaning, which is what float64 makes of the same sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch

from ...dump import Call, Value
from ..evaluation.evaluation import JITTER, EvaluatedStep, Evaluation, Shared
from ..evaluation.memory import UNREADABLE
from ..rerun.run_region import start_tensors
from ..sources.stand_ins import How


class Distances:
    """The distances of one recorded step.

    Attributes:
        evaluation: of the step from its own sources.
        by_value: relative L2 distance of each floating result, by value id.
    """

    def __init__(self, step: EvaluatedStep, exact: Mapping[int, torch.Tensor]) -> None:
        """Evaluate a step; `exact` has the contents of sources that it holds with fewer digits, by value id."""
        self.by_value: dict[int, float] = {}
        self._step, self._exact = step, exact
        self._is_scaled = bool(step.loss_scales)
        for number, contents in exact.items():
            self._watch(step.flow.rank.value_by_id(number), contents)
        self.evaluation = Evaluation(step, Shared(), exact, leads=True)
        self.evaluation.watch = self._watch
        self.evaluation.run()

    def _watch(self, value: Value, meaning: torch.Tensor) -> None:
        if value.is_floating and value.numel and not (value.undefined or value.opaque):
            try:
                recorded = start_tensors([value])[value.id]
            except UNREADABLE:
                return
            if recorded.shape == meaning.shape:
                self.by_value[value.id] = distance(recorded, meaning, scaled=self._is_scaled)

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


def distance(recorded: torch.Tensor, meaning: torch.Tensor, *, scaled: bool = False) -> float:
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
