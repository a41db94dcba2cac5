"""Values of both recordings get numbers; what has the same number is the same.

Theory of operation
    A value gets the number of a value that has the same signature, else a new one. A call also has a *key*: its op, and
    its arguments with numbers for tensors. Calls of equal keys compute the same by construction, whatever the digits
    say, and their results get the same numbers.
    A value that is no more than rounding (a sum that cancels to nothing) has no digits to go by. All such values of a
    size share the number of zero, and so does every value that is as small as their noise. One whose digits rounding
    decides at full size, such as the sign of such a sum, is known by its key alone, and so is one without a finite
    element.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable

from .signature import TOLERANCE, VAGUE, Signature, is_same


class Numbering:
    """The numbers of values, for both recordings."""

    def __init__(self) -> None:
        self._count = 0
        self._by_size: dict[int, list[tuple[float, int, Signature]]] = {}  # by elements: norm, number, signature
        self._widest: dict[int, float] = {}  # by elements: what the least exact signature allows
        self._nothing: dict[int, tuple[float, int]] = {}  # by elements: noise and number of what is only noise
        self._by_key: dict[Hashable, tuple[int, ...]] = {}

    def number(self, signature: Signature) -> int:
        """Return the number of a signature, a new one if none is the same."""
        if signature.has_no_contents:
            return self.new()
        if signature.noise > VAGUE * signature.norm:
            zero = Signature(signature.numel, 0.0, 0.0, 0.0, 0)
            if signature.is_unknown:
                return self.number(zero) if signature.contents == zero.contents else self.new()
            noise, found = self._nothing.get(signature.numel) or (0.0, self.number(zero))
            self._nothing[signature.numel] = max(noise, signature.noise), found
            return found
        known = self.find(signature)
        if known is None:
            known = self.new()
            self._add(signature, known)
        elif signature.noise:
            self._add(signature, known)
        return known

    def _add(self, signature: Signature, number: int) -> None:
        size = signature.numel
        insort(self._by_size.setdefault(size, []), (signature.norm, number, signature))
        self._widest[size] = max(self._widest.get(size, 0.0), signature.noise)

    def new(self) -> int:
        """Return a number that nothing has."""
        self._count += 1
        return self._count

    def find(self, signature: Signature) -> int | None:
        """Return the number of a signature that is the same, or None."""
        known = self._by_size.get(signature.numel, ())
        reach = 2 * TOLERANCE * signature.norm + signature.noise + self._widest.get(signature.numel, 0.0)
        for place in range(bisect_left(known, (signature.norm - reach,)), len(known)):
            norm, number, other = known[place]
            if norm > signature.norm + reach:
                break
            if is_same(signature, other):
                return number
        noise, number = self._nothing.get(signature.numel, (-1.0, 0))
        return number if signature.norm <= noise else None

    def by_key(self, key: Hashable) -> tuple[int, ...] | None:
        """Return the numbers of the results of a call of the same key, or None."""
        return self._by_key.get(key)

    def keep(self, key: Hashable, numbers: tuple[int, ...]) -> None:
        """Keep the numbers of a call's results."""
        self._by_key.setdefault(key, numbers)
