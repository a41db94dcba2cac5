"""What statistics alone tell of results of two programs that write something otherwise, where no region can be run.

Theory of operation
    Statistics of a tensor of some size that are equal to the last digit are those of equal tensors, or of elements in
    another order. Those that agree to rounding tell that two ways have met only where nothing that the step is for
    says otherwise: what is added to something larger, as a branch with a small scale, hides in it, and shows in
    its gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from ...dump import Value
from ..distance.cancelled_sums import times_cancelled
from ..evidence.judgement import Compared
from ..evidence.noise_floors import distance
from ..flow.counterparts import Counterparts
from ..flow.data_flow import DataFlow

_DEEP: Final = 256  # ops that lie behind an end, where the walk has not come to it yet
_ENOUGH: Final = 16  # elements whose statistics are hardly equal by chance


def shows_equality(compared: Compared) -> bool:
    """Tell whether two values' statistics are equal to the last digit, and say something."""
    target, _, close = compared
    norm = None if target.stats is None else target.stats.get("l2norm")
    is_equal = close.level == "statistic" and close.error == 0 and not close.nonfinite and close.shape is None
    return is_equal and target.is_floating and target.numel >= _ENOUGH and bool(norm)


class Statistics:
    """Compares values of both sides by their statistics."""

    def __init__(
        self, flows: tuple[DataFlow, DataFlow], known: Counterparts, ends: Sequence[tuple[Value, Value]]
    ) -> None:
        """Prepare to compare; `ends` are losses and gradients of both sides."""
        self._flows = flows
        self._known = known
        self._ends = ends

    def agree(self, targets: Sequence[Value], baselines: Sequence[Value], *, exact: bool) -> bool:
        """Tell whether statistics show that two ways have met: all values agree, and what the step is for does."""
        pairs = list(zip(targets, baselines, strict=True))
        found = [(target, baseline, self._known.close(target, baseline)) for target, baseline in pairs]
        if exact:
            return all(map(shows_equality, found))
        depth = self._known.depth
        return self._ends_agree and all(self._is_near(target, baseline, depth) for target, baseline in pairs)

    def times_cancelled(self, target: Value, baseline: Value) -> float:
        """Return how many times larger two values would be, at the least, if what they add up did not cancel."""
        made = zip(self._flows, (target, baseline), strict=True)
        writers = [(value, writer) for flow, value in made if (writer := flow.writer(value)) is not None]
        return max((times_cancelled(call, slot, value) for value, (call, slot, _) in writers), default=1.0)

    @cached_property
    def _ends_agree(self) -> bool:
        return bool(self._ends) and all(self._is_near(*both, _DEEP) for both in self._ends)

    def _is_near(self, target: Value, baseline: Value, depth: int) -> bool:
        """Tell whether two values are apart by no more than rounding may explain on a way of so many ops."""
        close = self._known.close(target, baseline)
        if close.bitwise:
            return True
        if close.level != "statistic" or not baseline.is_floating:
            return close.level == "statistic" and close.error == 0
        _, ratio = distance(target, baseline, close, depth)
        return ratio <= max(1.0, self.times_cancelled(target, baseline))
