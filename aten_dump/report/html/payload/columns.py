"""Sections: columns of numbers and tables of texts as bytes that compress well and that a browser reads at once.

Theory of operation
    A section is a JSON header and the bytes of its columns. Integers are stored as differences where that is asked for,
    in the fewest whole bytes, all lowest bytes first (planes): then gzip finds runs. Numbers are stored as six
    decimal digits and an exponent, as the command line prints them: the page shows the very same digits.
    ``page/data/columns.js`` is the reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)

DIGITS: Final = 6
# Exponents that stand for what is no finite number.
NAN: Final = 127
POSITIVE_INFINITY: Final = 126
NEGATIVE_INFINITY: Final = 125
NOTHING: Final = 124
NEGATIVE_ZERO: Final = 123
_EXACT: Final = 1 << 52  # greater integers lose digits as doubles do


class Interned(Generic[Key]):
    """Numbers for things that come again, in the order in which they came first."""

    __slots__ = ("_numbers", "items")

    def __init__(self, *items: Key) -> None:
        self.items: list[Key] = list(items)
        self._numbers = {item: number for number, item in enumerate(items)}

    def number(self, item: Key) -> int:
        found = self._numbers.get(item)
        if found is None:
            found = self._numbers[item] = len(self.items)
            self.items.append(item)
        return found


class Section:
    """Columns and JSON values under names."""

    def __init__(self) -> None:
        self._columns: list[list[Any]] = []
        self._bytes: list[bytes] = []
        self._json: dict[str, Any] = {}

    def add_json(self, name: str, value: Any) -> None:
        """Add anything that JSON can hold."""
        self._json[name] = value

    def add_integers(self, name: str, numbers: Iterable[int] | Integers, *, delta: bool = False) -> None:
        """Add integers.

        Args:
            name: of the column.
            numbers: of up to 53 bits, as the page has them as doubles.
            delta: store differences from one to the next.
        """
        values = np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), np.int64)
        if delta and len(values):
            values = np.diff(values, prepend=0)
        signed = bool((values < 0).any())
        if signed:
            values = (values << 1) ^ (values >> 63)
        width = _width(int(values.max(initial=0)))
        planes = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T
        self._columns.append([name, len(values), width, int(signed), int(delta)])
        self._bytes.append(planes.tobytes())

    def add_decimals(self, name: str, numbers: Sequence[Any]) -> None:
        """Add numbers as decimals; None is "not defined"."""
        pairs = [decimal(number) for number in numbers]
        self.add_pairs(name, [digits for digits, _ in pairs], [exponent for _, exponent in pairs])

    def add_pairs(self, name: str, digits: Iterable[int] | Integers, exponents: Iterable[int] | Integers) -> None:
        """Add numbers as `decimal` makes them."""
        self.add_integers(f"{name}.digits", digits)
        self.add_integers(f"{name}.exponent", exponents)

    def pack(self) -> bytes:
        """Return the section: length of the header (4 bytes, little endian), header, columns."""
        header = json.dumps({"columns": self._columns, "json": self._json}, separators=(",", ":")).encode()
        return b"".join((len(header).to_bytes(4, "little"), header, *self._bytes))


def _width(greatest: int) -> int:
    return next(width for width in (1, 2, 3, 4, 8) if greatest < 1 << 8 * width)


def decimal(number: Any) -> tuple[int, int]:
    """Return the digits and the exponent of a number, rounded as ``format_number`` does; integers are exact."""
    if number is None or isinstance(number, complex):
        return 0, NOTHING
    if not isinstance(number, float):
        if abs(number) < _EXACT:
            return int(number), 0
        number = float(number)
    if not math.isfinite(number):
        return 0, NAN if math.isnan(number) else POSITIVE_INFINITY if number > 0 else NEGATIVE_INFINITY
    if number == 0:
        return 0, NEGATIVE_ZERO if math.copysign(1.0, number) < 0 else 0
    digits, _, exponent = f"{number:.{DIGITS - 1}e}".partition("e")
    return int(digits.replace(".", "")), int(exponent) - DIGITS + 1
