"""Pair the calls of two recordings.

Theory of operation
    A call is known by (phase, module, op, shape). Names and counters are of no use: one more op shifts all after it.
    1. Calls that the user's mapping names are paired as it says.
    2. Patience: calls whose (phase, module, op, shape) occurs once on both sides are anchors; between two anchors
       other calls become unique, so it is done again in each gap.
    3. What is left in a gap is paired by longest common subsequence: first on all of (phase, module, op, shape), then
       on (phase, op, shape), which renamed modules do not disturb, and last, when all others have their partners, on
       (phase, module, op), so that an op whose shape is wrong is compared, and its shape reported.
    Calls still alone form regions: a fused op against its parts, an inserted or a missing op. The phase is part of
    every key: without it, forward ops pair with recomputed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from .subsequence import longest_common, unique_anchors

Gap = tuple[list[int], list[int]]  # positions on both sides, between two pairs
How = Literal["mapping", "module", "sequence", "order", "shapeless", "flow", "recompute"]

HOW_TEXTS: Final[dict[How, str]] = {
    "mapping": "named by the mapping",
    "module": "only call of this module, op and shape here",
    "sequence": "same module, op and shape, in sequence",
    "order": "same op and shape, in sequence",
    "shapeless": "same module and op, another shape",
    "flow": "same op on the same inputs",
    "recompute": "recomputed call and its original",
}


class CallKey(NamedTuple):
    """What a call is known by in both recordings."""

    phase: str
    module: str
    op: str
    shape: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Match:
    """Positions of a pair in the two sequences, and how it was found."""

    target: int
    baseline: int
    how: How


class Aligner:
    """Aligns two sequences of keys; symbols are numbered once for each way to look at a key."""

    def __init__(self, target: Sequence[CallKey], baseline: Sequence[CallKey]) -> None:
        self._full = _numbered(target, baseline, lambda key: key)
        self._short = _numbered(target, baseline, lambda key: (key.phase, key.op, key.shape))
        self._shapeless = _numbered(target, baseline, lambda key: (key.phase, key.module, key.op))
        self._sizes = (len(target), len(baseline))
        self.matches: list[Match] = []

    def run(self, pinned: Iterable[tuple[int, int]] = ()) -> list[Match]:
        """Return all pairs, in order of the target; `pinned` pairs come from the user's mapping."""
        pins = list(pinned)
        self.matches = [Match(i, j, "mapping") for i, j in pins]
        target, baseline = {i for i, _ in pins}, {j for _, j in pins}
        left_a = [i for i in range(self._sizes[0]) if i not in target]
        left_b = [j for j in range(self._sizes[1]) if j not in baseline]
        gaps = self._patience(left_a, left_b)
        self._other_shapes(gaps, left_a, left_b)
        return sorted(self.matches, key=lambda match: match.target)

    def _patience(self, a: list[int], b: list[int]) -> list[Gap]:
        """Pair by unique full keys, then again between the pairs found, until none is unique; return what is left."""
        waiting, left = [(a, b)], []
        while waiting:
            a, b = waiting.pop()
            found = self._apply(unique_anchors, self._full, a, b)
            if not found:
                left += self._sequences(a, b)
                continue
            self._keep(found, a, b, "module")
            waiting += _between(found, a, b)
        return left

    def _sequences(self, a: list[int], b: list[int]) -> list[Gap]:
        """Pair by longest common subsequences, the second in the gaps of the first; return what is left."""
        waiting = [(a, b)]
        levels: tuple[tuple[tuple[list[int], list[int]], How], ...] = ((self._full, "sequence"), (self._short, "order"))
        for symbols, how in levels:
            left = []
            for a, b in waiting:
                if not a or not b:
                    continue
                anchors = self._apply(unique_anchors, symbols, a, b) if how == "order" else []
                self._keep(anchors, a, b, how)
                for x, y in _between(anchors, a, b):
                    found = self._apply(longest_common, symbols, x, y)
                    self._keep(found, x, y, how)
                    left += _between(found, x, y)
            waiting = left
        return waiting

    def _other_shapes(self, gaps: list[Gap], a: list[int], b: list[int]) -> None:
        """Pair what is left in the gaps by op and module; not calls that are left on both sides, in another order."""
        paired_a, paired_b = {match.target for match in self.matches}, {match.baseline for match in self.matches}
        keys_a, keys_b = self._full
        both = {keys_a[i] for i in a if i not in paired_a} & {keys_b[j] for j in b if j not in paired_b}
        for gap_a, gap_b in gaps:
            x, y = [i for i in gap_a if keys_a[i] not in both], [j for j in gap_b if keys_b[j] not in both]
            self._keep(self._apply(longest_common, self._shapeless, x, y), x, y, "shapeless")

    @staticmethod
    def _apply(
        find: Callable[[list[int], list[int]], list[tuple[int, int]]],
        symbols: tuple[list[int], list[int]],
        a: list[int],
        b: list[int],
    ) -> list[tuple[int, int]]:
        if not a or not b:
            return []
        return find([symbols[0][i] for i in a], [symbols[1][j] for j in b])

    def _keep(self, found: list[tuple[int, int]], a: list[int], b: list[int], how: How) -> None:
        self.matches += [Match(a[i], b[j], how) for i, j in found]


def _between(found: list[tuple[int, int]], a: list[int], b: list[int]) -> list[Gap]:
    """Return what lies between the pairs, where both sides have something."""
    gaps = []
    i, j = 0, 0
    for x, y in [*found, (len(a), len(b))]:
        if x > i and y > j:
            gaps.append((a[i:x], b[j:y]))
        i, j = x + 1, y + 1
    return gaps


def _numbered(
    target: Sequence[CallKey], baseline: Sequence[CallKey], view: Callable[[CallKey], tuple[object, ...]]
) -> tuple[list[int], list[int]]:
    """Replace each key, seen through `view`, by a number."""
    numbers: dict[tuple[object, ...], int] = {}
    return (
        [numbers.setdefault(view(key), len(numbers)) for key in target],
        [numbers.setdefault(view(key), len(numbers)) for key in baseline],
    )


def align(
    target: Sequence[CallKey], baseline: Sequence[CallKey], pinned: Iterable[tuple[int, int]] = ()
) -> list[Match]:
    """Pair two sequences of keys; see the module's theory of operation.

    Args:
        target: one side, in execution order.
        baseline: the other side.
        pinned: pairs of positions that the user has given.

    Returns:
        The pairs in order of `target`; a position is in one pair at most.
    """
    return Aligner(target, baseline).run(pinned)
