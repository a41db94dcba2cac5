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

    `longest_common` is bit-parallel (Crochemore et al. 2001, Hyyrö 2004): one Python int holds a row of the
    dynamic programme, a bit per element of `a`, so a row costs four operations on ints of len(a) bits. A zero bit
    means "the length grows here", which is enough to walk back. Rows are kept for the walk while they fit in
    `_MAX_BITS`; beyond, Hirschberg's split finds where the middle of `b` meets `a` from two rows only.
    `unique_anchors` is the core of patience diff: symbols that occur once on both sides, kept in common order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

Pairs = list[tuple[int, int]]

_MAX_BITS: Final = 1 << 30  # of rows kept at once: 128 MiB

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


def unique_anchors(a: Sequence[int], b: Sequence[int]) -> Pairs:
    """Return the positions of symbols that occur once in each, in the longest order both agree on."""
    count_a, count_b = Counter(a), Counter(b)
    where = {symbol: at for at, symbol in enumerate(a) if count_a[symbol] == 1 and count_b.get(symbol) == 1}
    if not where:
        return []
    found = [(where[symbol], at) for at, symbol in enumerate(b) if symbol in where]
    return _increasing(found)


def _increasing(pairs: Pairs) -> Pairs:
    """Return the longest run of pairs whose first numbers rise; the second ones rise already."""
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (first, _) in enumerate(pairs):
        pile = bisect_left(tops, first)
        before.append(ends[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(first)
            ends.append(number)
        else:
            tops[pile], ends[pile] = first, number
    found: Pairs = []
    at = ends[-1] if ends else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def longest_common(a: Sequence[int], b: Sequence[int]) -> Pairs:
    """Return the positions of a longest common subsequence of `a` and `b`."""
    known_b, known_a = set(b), set(a)
    kept_a = [at for at, symbol in enumerate(a) if symbol in known_b]
    kept_b = [at for at, symbol in enumerate(b) if symbol in known_a]
    pairs = _split([a[at] for at in kept_a], [b[at] for at in kept_b])
    return [(kept_a[i], kept_b[j]) for i, j in pairs]


def _split(a: list[int], b: list[int]) -> Pairs:
    """Trim what is equal at both ends; split by Hirschberg where the rows would not fit."""
    start = 0
    least = min(len(a), len(b))
    while start < least and a[start] == b[start]:
        start += 1
    stop = 0
    while stop < least - start and a[-1 - stop] == b[-1 - stop]:
        stop += 1
    head = [(i, i) for i in range(start)]
    tail = [(len(a) - i, len(b) - i) for i in range(stop, 0, -1)]
    a, b = a[start : len(a) - stop], b[start : len(b) - stop]
    if len(a) * len(b) <= _MAX_BITS:
        inner = _walk(a, b)
    else:
        middle = len(b) // 2
        meet = _meeting(a, b, middle)
        inner = _split(a[:meet], b[:middle]) + [(i + meet, j + middle) for i, j in _split(a[meet:], b[middle:])]
    return head + [(i + start, j + start) for i, j in inner] + tail


def _masks(a: Sequence[int]) -> dict[int, int]:
    """Return, for each symbol, an int with a bit set where `a` has it."""
    places: dict[int, list[int]] = {}
    for at, symbol in enumerate(a):
        places.setdefault(symbol, []).append(at)
    masks = {}
    for symbol, positions in places.items():
        bits = np.zeros(positions[-1] + 1, dtype=np.uint8)
        bits[positions] = 1
        masks[symbol] = int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
    return masks


def _rows(a: Sequence[int], b: Sequence[int]) -> Iterator[int]:
    """Yield the row after each element of `b`; a zero bit i means the length grows at a[i]."""
    masks = _masks(a)
    full = (1 << len(a)) - 1
    row = full
    for symbol in b:
        hit = row & masks.get(symbol, 0)
        row = ((row + hit) | (row ^ hit)) & full
        yield row


def _walk(a: Sequence[int], b: Sequence[int]) -> Pairs:
    if not a or not b:
        return []
    rows = list(_rows(a, b))
    found: Pairs = []
    i, j = len(a), len(b)
    while i and j:
        if rows[j - 1] >> (i - 1) & 1:
            i -= 1
            continue
        j -= 1
        if j and not rows[j - 1] >> (i - 1) & 1:
            continue
        i -= 1
        found.append((i, j))
    return found[::-1]


def _meeting(a: Sequence[int], b: Sequence[int], middle: int) -> int:
    """Return where to cut `a` so that cutting `b` at `middle` loses nothing."""
    forward = _lengths(a, b[:middle])
    backward = _lengths(a[::-1], b[middle:][::-1])[::-1]
    return int(np.argmax(forward + backward))


def _lengths(a: Sequence[int], b: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the length of the longest common subsequence of each prefix of `a` with all of `b`."""
    last = deque(_rows(a, b), maxlen=1)
    row = last[0] if last else (1 << len(a)) - 1
    raw = np.frombuffer(row.to_bytes((len(a) + 7) // 8, "little"), dtype=np.uint8)
    grows = 1 - np.unpackbits(raw, bitorder="little")[: len(a)].astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(grows)])
