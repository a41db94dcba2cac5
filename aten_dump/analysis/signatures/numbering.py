"""Values of both recordings get numbers; what has the same number is the same.

Theory of operation
    A value gets the number of a value that has the same signature, else a new one. A call also has a *key*: its op, and
    its arguments with numbers for tensors. Calls of equal keys compute the same by construction, whatever the digits
    say, and their results get the same numbers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable

from .signature import TOLERANCE, Signature, is_same


class Numbering:
    """The numbers of values, for both recordings."""

    def __init__(self) -> None:
        self._count = 0
        self._by_size: dict[int, list[tuple[float, int, Signature]]] = {}  # by elements: norm, number, signature
        self._widest: dict[int, float] = {}  # by elements: what the least exact signature allows
        self._by_key: dict[Hashable, tuple[int, ...]] = {}

    def number(self, signature: Signature) -> int:
        """Return the number of a signature, a new one if none is the same."""
        found = self.find(signature)
        if found is None:
            found = self.new()
            self.add(signature, found)
        return found

    def add(self, signature: Signature, number: int) -> None:
        """Keep a signature under a number."""
        size = signature.numel
        insort(self._by_size.setdefault(size, []), (signature.norm, number, signature))
        self._widest[size] = max(self._widest.get(size, 0.0), signature.noise)

    def new(self) -> int:
        """Return a number that nothing has."""
        self._count += 1
        return self._count

    def find(self, signature: Signature) -> int | None:
        """Return the number of a signature that is the same, or None."""
        known = self._by_size.get(signature.numel)
        if not known:
            return None
        reach = 2 * TOLERANCE * signature.norm + signature.noise + self._widest[signature.numel]
        start = bisect_left(known, (signature.norm - reach,))
        for norm, number, other in known[start:]:
            if norm > signature.norm + reach:
                break
            if is_same(signature, other):
                return number
        return None

    def by_key(self, key: Hashable) -> tuple[int, ...] | None:
        """Return the numbers of the results of a call of the same key, or None."""
        return self._by_key.get(key)

    def keep(self, key: Hashable, numbers: tuple[int, ...]) -> None:
        """Keep the numbers of a call's results."""
        self._by_key.setdefault(key, numbers)
