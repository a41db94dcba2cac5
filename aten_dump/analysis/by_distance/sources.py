"""What comes from outside the step, compared by its numbers: parameters, buffers, data must be the same.

Theory of operation
    At the first step they must be equal, or be the other rounded to its dtype. At a later step a value may be what the
    step before left behind: its difference is then that step's affair. Where no step before was compared, the noise of
    as many steps is allowed.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import xxhash

from ...dump import RankDump, Value
from ...errors import AtenDumpError
from ..distance.element_chunks import plain
from ..distance.value_distance import Closeness, equal_but_for_dtype, equal_but_for_order
from ..evidence.judgement import Judgement
from ..evidence.noise_floors import limits_of
from ..rerun.run_op import bits

_OF_STEPS: Final = 8.0  # times the root of the number of steps
_TELLING: Final = ("min", "max", "mean", "l2norm")  # statistics that differ from tensor to tensor
_SOURCE: Final = "it came from outside the step (a parameter, a buffer, data, numbers of Python) and differs already"


class LeftBehind:
    """What one step of one rank held in memory when it ended."""

    def __init__(self, rank: RankDump) -> None:
        self._rank = rank

    def has(self, value: Value) -> bool:
        """Return True if the step left a tensor with the contents of a value."""
        digest = digest_of(value)
        return digest is not None and (value.dtype_name, value.numel, digest) in self._digests

    @cached_property
    def _digests(self) -> set[tuple[str, int, str | None]]:
        newest: dict[tuple[object, ...], tuple[int, int]] = {}
        for record in self._rank.tables.values.records():
            place = record.place if record.storage else (-record.id,)
            newest[place] = max(newest.get(place, (-1, -1)), (record.version, record.id))
        values = [self._rank.value_by_id(id) for _, id in newest.values()]
        return {(value.dtype_name, value.numel, digest_of(value)) for value in values}


class Outside:
    """Judges pairs of values from outside; `precisions` has the dtypes in which they differ."""

    def __init__(
        self,
        steps: tuple[int, int],
        *,
        exact: bool,
        before: tuple[LeftBehind, LeftBehind] | None = None,
        summed_otherwise: bool = False,
    ) -> None:
        """Prepare to judge.

        Args:
            steps: the target's and the baseline's.
            exact: all that differs counts, as at the first step.
            before: what the step before of both sides left, where that is compared too.
            summed_otherwise: the runs may have added up the statistics of one tensor in another order.
        """
        self.precisions: set[tuple[str, str]] = set()
        self._steps = steps
        self._exact = exact
        self._before = before
        self._summed_otherwise = summed_otherwise

    def judge(self, target: Value, baseline: Value, close: Closeness) -> tuple[Judgement, str]:
        """Return what is to be said of two values from outside, and the sentence if it is a finding."""
        if close.shape is not None:
            return Judgement("different", True, floor_from="exact"), _SOURCE
        if not close.known:
            return Judgement("unknown", note=close.reason), _SOURCE
        if close.dtype is not None:
            self.precisions.add(close.dtype)
        if close.bitwise:
            return Judgement("same", floor_from="exact"), _SOURCE
        if self._before is not None and self._before[0].has(target) and self._before[1].has(baseline):
            return Judgement("within", floor_from="exact", note="inherited from the step before"), _SOURCE
        if not self._exact:
            return self._after_steps(target, baseline, close), _SOURCE
        if self._has_equal_statistics(target, baseline, close) or _is_cast(target, baseline, close):
            return Judgement("within", floor_from="exact"), _SOURCE
        return Judgement("different", True, 0.0, "exact", math.inf), _SOURCE

    def _has_equal_statistics(self, target: Value, baseline: Value, close: Closeness) -> bool:
        if close.level != "statistic" or not close.error:
            return close.level == "statistic" and not close.nonfinite
        if close.dtype is not None:
            return equal_but_for_dtype(target, baseline, close)
        may_differ = self._summed_otherwise or close.layout is not None
        return may_differ and equal_but_for_order(target, baseline, close)

    def _after_steps(self, target: Value, baseline: Value, close: Closeness) -> Judgement:
        """Judge what differs after steps that were not compared."""
        limits = limits_of(target, baseline).times(_OF_STEPS * math.sqrt(1 + max(self._steps)))
        ratio = (close.error or 0.0) / limits.rel_l2 if limits.rel_l2 else math.inf if close.error else 0.0
        wrong = ratio > 1 or close.nonfinite
        return Judgement("different" if wrong else "within", wrong, limits.rel_l2, "depth", ratio)


def _is_cast(target: Value, baseline: Value, close: Closeness) -> bool:
    """Return True if two tensors are equal once both are cast to the coarser dtype."""
    if close.level != "tensor" or close.dtype is None or not (target.is_floating and baseline.is_floating):
        return False
    return not close.nonfinite and (close.error or 0.0) <= limits_of(target, baseline).rel_l2


def digest_of(value: Value) -> str | None:
    """Return a digest of the elements, else of their statistics; None where nothing is known of them."""
    if value.hash is not None:
        return value.hash
    if value.undefined:
        return None
    if value.has_data:
        return _digest_of_bytes(value)
    stats = value.stats
    if stats is None or any(stats.get(name) is None for name in _TELLING):
        return None
    return repr([(name, stats[name]) for name in sorted(stats)])


def _digest_of_bytes(value: Value) -> str | None:
    try:
        return xxhash.xxh3_128_hexdigest(bits(plain(value.tensor())).numpy().tobytes())
    except (AtenDumpError, RuntimeError):
        return None
