"""Records as msgpack, packed where they are said.

Packing holds Python's lock, on whichever thread it is done: a thread that does it for the program makes the program
wait as long. Done at once, it finds the record in the processor's caches, and what the record is made of is let go of
before Python's collector has come to look through it. The C file beside this one does it where it was compiled
(hatch_build.py), msgpack where not, and for what is not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgpack

from ..records import CALL, NOTE, VALUE, Call, Note, Value

try:
    from ._pack_record import adder, pack_record
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

_FIXED_ARRAY_ENDS: Final = 0xA0  # a msgpack array of less than 16 fields begins with a byte below, of more with 3 bytes
_CALL_FIELDS: Final = len(Call._fields)
_VALUE_FIELDS: Final = len(Value._fields)
# What packs, while it does not: other threads may, and a finalizer that Python's collector runs meanwhile.
_idle: Final[list[Any]] = []


def new_packer() -> Any:
    """Return what packs one record after the other, on one thread at a time."""
    return msgpack.Packer(use_bin_type=True, unicode_errors="backslashreplace").pack


class PackedRecords:
    """A list of packed records that several threads may add to."""

    __slots__ = ("add", "waiting")

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        # Adds a record; where msgpack cannot write it, a Note that says so. In C, where it was compiled.
        self.add: Callable[[tuple[Any, ...]], None]
        self.add = adder(self.waiting, _add) if IS_COMPILED else partial(_add, self.waiting)

    def take(self) -> list[bytes]:
        """Return what was added; another thread may add meanwhile."""
        count = len(self.waiting)
        taken = self.waiting[:count]
        del self.waiting[:count]
        return taken


def packed(records: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """Pack some records."""
    found = PackedRecords()
    for record in records:
        found.add(record)
    return found.waiting


def _add(waiting: list[bytes], record: tuple[Any, ...]) -> None:
    if record[-1] is None:
        record = _shortest(record)
    data: bytes | None = pack_record(record) if IS_COMPILED else None
    if data is not None:
        waiting.append(data)
        return
    try:
        pack = _idle.pop()
    except IndexError:
        pack = new_packer()
    try:
        data = pack(record)
    except (TypeError, ValueError, OverflowError) as error:
        message = f"a record of kind {record[0]!r} was left out: {error}; it held {_shown(record)}"
        data = pack(Note(NOTE, "unwritable_record", message, 1))
    _idle.append(pack)
    waiting.append(data)


def kind_of(data: bytes) -> int:
    """Return the kind of a packed record."""
    return data[1] if data[0] < _FIXED_ARRAY_ENDS else data[3]


def _shortest(record: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out the trailing fields of the two most frequent kinds where they have their defaults."""
    kind = record[0]
    if kind == CALL and len(record) == _CALL_FIELDS:
        return record[:-2] if record[-2] is None else record[:-1]
    if kind == VALUE and len(record) == _VALUE_FIELDS:
        return record[:-1] if record[-2] else record[:-2]
    return record


def _shown(record: tuple[Any, ...]) -> str:
    try:
        return f"{record!r:.400}"
    except ValueError:  # sys.set_int_max_str_digits
        return "an integer of too many digits to be shown"
