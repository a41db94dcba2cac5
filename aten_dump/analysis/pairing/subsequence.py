"""Longest common subsequences of symbol sequences, and patience anchors.

Theory of operation
    `longest_common` is bit-parallel (Crochemore et al. 2001, Hyyrö 2004): one Python int holds a row of the
    dynamic programme, a bit per element of `a`, so a row costs four operations on ints of len(a) bits. A zero bit
    means "the length grows here", which is enough to walk back. Rows are kept for the walk while they fit in
    `_MAX_BITS`; beyond, Hirschberg's split finds where the middle of `b` meets `a` from two rows only.
    `unique_anchors` is the core of patience diff: symbols that occur once on both sides, kept in common order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

Pairs = list[tuple[int, int]]

_MAX_BITS: Final = 1 << 30  # of rows kept at once: 128 MiB


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


def _rows(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Return the row after each element of `b`; a zero bit i means the length grows at a[i]."""
    masks = _masks(a)
    full = (1 << len(a)) - 1
    row = full
    rows = []
    for symbol in b:
        hit = row & masks.get(symbol, 0)
        row = ((row + hit) | (row ^ hit)) & full
        rows.append(row)
    return rows


def _walk(a: Sequence[int], b: Sequence[int]) -> Pairs:
    if not a or not b:
        return []
    rows = _rows(a, b)
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
    masks = _masks(a)
    full = (1 << len(a)) - 1
    row = full
    for symbol in b:
        hit = row & masks.get(symbol, 0)
        row = ((row + hit) | (row ^ hit)) & full
    raw = np.frombuffer(row.to_bytes((len(a) + 7) // 8, "little"), dtype=np.uint8)
    grows = 1 - np.unpackbits(raw, bitorder="little")[: len(a)].astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(grows)])
