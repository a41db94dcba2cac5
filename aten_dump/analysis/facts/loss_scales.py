"""Differences that come from the scales of gradient scalers, or from a scaler in one run only.

Until gradients are unscaled, the loss and all gradients of one run are the other's times the ratio of both scales. What
is computed from the scale alone is multiplied or divided by it. Nothing else is excused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...dump import RankDump
from ..distance.value_distance import Factor

_HALF: Final = ("float16", "bfloat16")
_ROUNDING: Final = {True: (4e-3, 1e-4), False: (1e-5, 1e-9)}  # half or not: of an error, and of a cosine


@dataclass(frozen=True, slots=True)
class ScaleRatio:
    """The ratio of scaled losses and gradients of two step-ranks."""

    target: float | None  # scale of the loss, None without a scaler
    baseline: float | None
    half: bool  # one of them computes in half precision, so the tolerance is coarser

    @property
    def number(self) -> float:
        """The target's over the baseline's."""
        return (self.target or 1.0) / (self.baseline or 1.0)

    def explains(self, error: float | None, cosine: float | None, *, one_element: bool = False) -> bool:
        """True if a difference is no more than that of the scales.

        Args:
            error: relative L2 between target and baseline.
            cosine: between them.
            one_element: True for a single number, which may be the scale or its inverse.
        """
        if error is None or cosine is None:
            return False
        rounding, angle = _ROUNDING[self.half]
        ratios = self._ratios(one_element=one_element)
        return 1 - cosine <= angle and any(math.isclose(error, abs(one - 1), rel_tol=rounding) for one in ratios)

    def explains_statistics(self, factor: Factor) -> bool:
        """True if statistics that differ are those of the baseline times the scales' ratio."""
        rounding, _ = _ROUNDING[self.half]
        ratios = self._ratios(one_element=factor.count == 1)
        return factor.left <= rounding and any(math.isclose(factor.number, one, rel_tol=rounding) for one in ratios)

    def _ratios(self, *, one_element: bool) -> tuple[float, ...]:
        return (self.number, 1 / self.number) if one_element else (self.number,)

    def explains_unscaled(self, error: float | None) -> bool:
        """True if unscaled gradients, or results of them, are as close as the coarser precision allows."""
        return error is not None and error <= _ROUNDING[self.half][0]

    def __str__(self) -> str:
        scales = [f"by {scale:g}" if scale else "by nothing" for scale in (self.target, self.baseline)]
        return (
            f"the loss is scaled {scales[0]} in the target, {scales[1]} in the baseline: scaled losses and gradients "
            f"that differ by a factor of {max(self.number, 1 / self.number):g} alone are taken for equal"
        )


def scale_ratio(target: RankDump, baseline: RankDump) -> ScaleRatio | None:
    """Return the ratio of the scales of two step-ranks; None if they are equal."""
    scales = target.loss_scale, baseline.loss_scale
    if (scales[0] or 1.0) == (scales[1] or 1.0):
        return None
    return ScaleRatio(*scales, half=any(any(_halves(rank)) for rank in (target, baseline)))


def _halves(rank: RankDump) -> Iterator[bool]:
    return (text in _HALF for text in rank.tables.texts.values())
