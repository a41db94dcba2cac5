"""Checks that the ids in an index name something, and that nothing is its own ancestor: for all records at once.

Theory of operation
    Ids, references and codes are the integers that records begin with, which numpy reads without decoding the rest. So
    an index of a million calls is checked in a part of a second, before anything follows a reference. A call begins
    after its parent, and a stack is written after the one it continues: both have a greater id, so no
    circle exists. What an interrupted run may lack (a parent, a blob, a shard's bytes) is no error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import FormatError
from .. import records as r
from ..raw_rows import Integers, MadeRows, RawRows

_IDS_APART: Final = 8  # ids this much further apart than there are rows are not kept in an array


class _Reference(NamedTuple):
    """A field that must be the id of a record of another kind."""

    kind: int
    field: str
    target: int
    optional: bool = True  # 0 stands for none


class _Code(NamedTuple):
    """A field that must be one of some codes."""

    kind: int
    field: str
    codes: tuple[str, ...]


_REFERENCES: Final = (
    _Reference(r.FRAME, "file", r.TEXT),
    _Reference(r.FRAME, "function", r.TEXT),
    _Reference(r.STACK, "parent", r.STACK),
    _Reference(r.STACK, "frame", r.FRAME, optional=False),
    _Reference(r.STORAGE, "device", r.TEXT),
    _Reference(r.VALUE, "storage", r.STORAGE),
    _Reference(r.VALUE, "dtype", r.TEXT),
    _Reference(r.DATA, "value", r.VALUE, optional=False),
    _Reference(r.OPEN, "op", r.OP, optional=False),
    _Reference(r.OPEN, "stack", r.STACK),
    _Reference(r.OPEN, "module", r.TEXT),
    _Reference(r.CALL, "op", r.OP, optional=False),
    _Reference(r.CALL, "stack", r.STACK),
    _Reference(r.CALL, "module", r.TEXT),
    _Reference(r.RANDOM, "device", r.TEXT),
    _Reference(r.KERNEL, "op", r.OP, optional=False),
    _Reference(r.KERNEL, "graph", r.GRAPH, optional=False),
    _Reference(r.KERNEL, "code", r.TEXT),
)
_CODES: Final = (
    _Code(r.OP, "call_kind", r.CALL_KINDS),
    _Code(r.OPEN, "phase", r.PHASES),
    _Code(r.CALL, "phase", r.PHASES),
)
# Of these kinds, references to records of the same kind that must come before.
_EARLIER: Final = ((r.STACK, "parent"), (r.OPEN, "parent"), (r.CALL, "parent"), (r.CALL, "forward"))
# Fields that count or measure.
_NOT_NEGATIVE: Final = (
    (r.VALUE, ("version", "offset")),
    (r.STORAGE, ("nbytes",)),
    (r.BLOB, ("shard", "offset", "nbytes")),
    (r.DATA, ("blob", "offset", "layout")),
    (r.CALL, ("n", "repeat", "duration_ns")),
)


def check_references(rows: Mapping[int, RawRows | MadeRows], where: str) -> None:
    """Raise where ids, references or codes of an index make no sense.

    Args:
        rows: of each kind.
        where: names the index in errors.

    Raises:
        FormatError: naming the record, the field and what it holds.
    """
    columns = _Columns(rows, where)
    known: dict[int, _Known] = {}
    for reference in _REFERENCES:
        found = columns.of(reference.kind, reference.field)
        if not len(found):
            continue
        if reference.target not in known:
            known[reference.target] = _Known(columns.of(reference.target, "id"))
        right = known[reference.target].has(found)
        if reference.optional:
            right |= found == 0
        target = r.RECORD_TYPES[reference.target].__name__
        columns.expect(reference.kind, reference.field, right, f"the id of a {target} record")
    for kind, field, codes in _CODES:
        found = columns.of(kind, field)
        columns.expect(kind, field, (found >= 0) & (found < len(codes)), f"0 to {len(codes) - 1}")
    for kind, field in _EARLIER:
        found = columns.of(kind, field)
        columns.expect(kind, field, (found >= 0) & (found < columns.of(kind, "id")), "the id of an earlier one, or 0")
    for kind, fields in _NOT_NEGATIVE:
        for field in fields:
            columns.expect(kind, field, columns.of(kind, field) >= 0, "0 or more")
    check_shards(rows[r.SHARD], where)
    columns.check_ids()


def check_shards(rows: RawRows | MadeRows, where: str) -> None:
    """Raise unless shards are numbered one after the other.

    Raises:
        FormatError: naming the shard.
    """
    numbers = rows.column(r.Shard._fields.index("number"))
    wrong = np.flatnonzero(numbers != np.arange(len(numbers)))
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(f"{where} has shard {int(numbers[at])} where number {at} must be; it was changed")


class _Known:
    """The ids of a kind."""

    def __init__(self, ids: Integers) -> None:
        self._ids = ids
        most = int(ids.max(initial=0)) + 1
        self._table = None
        if 0 < most <= _IDS_APART * len(ids) + 1024 and ids.min(initial=0) >= 0:
            self._table = np.zeros(most, bool)
            self._table[ids] = True

    def has(self, numbers: Integers) -> Any:
        """Return for each number whether it is an id."""
        if self._table is None:
            return np.isin(numbers, self._ids)
        inside = (numbers >= 0) & (numbers < len(self._table))
        return inside & self._table[np.where(inside, numbers, 0)]


class _Columns:
    """Integer fields of all records of a kind."""

    _WANTED: Final = {
        r.TEXT: ("id",),
        r.OP: ("id", "call_kind"),
        r.FRAME: ("id", "file", "line", "function"),
        r.STACK: ("id", "parent", "frame"),
        r.STORAGE: ("id", "nbytes", "device"),
        r.VALUE: ("id", "storage", "version", "offset", "dtype"),
        r.BLOB: ("id", "shard", "offset", "nbytes"),
        r.DATA: ("value", "blob", "offset", "layout"),
        r.OPEN: ("id", "parent", "op", "phase", "stack", "module"),
        r.CALL: ("id", "parent", "op", "n", "repeat", "phase", "duration_ns", "stack", "module", "forward"),
        r.RANDOM: ("device",),
        r.GRAPH: ("id",),
        r.KERNEL: ("op", "graph", "code"),
    }

    def __init__(self, rows: Mapping[int, RawRows | MadeRows], where: str) -> None:
        self._rows = rows
        self._where = where
        self._found: dict[int, dict[str, Integers]] = {}

    def of(self, kind: int, field: str) -> Integers:
        """Return a field of all records of a kind."""
        if kind not in self._found:
            names = self._WANTED[kind]
            fields = r.RECORD_TYPES[kind]._fields  # type: ignore[attr-defined]
            columns = self._rows[kind].columns(*(fields.index(name) for name in names))
            self._found[kind] = dict(zip(names, columns, strict=True))
        return self._found[kind][field]

    def expect(self, kind: int, field: str, right: Any, allowed: str) -> None:
        """Raise for the first record whose field is not right."""
        if not right.all():
            at = int(right.argmin())
            name = r.RECORD_TYPES[kind].__name__
            raise FormatError(
                f"{self._where} has a {name} record, number {at} of its kind, whose {field} is "
                f"{int(self.of(kind, field)[at])}; it must be {allowed}: it was changed, or not written by aten_dump"
            )

    def check_ids(self) -> None:
        """Raise for an id below 1."""
        for kind, names in self._WANTED.items():
            if "id" in names:
                self.expect(kind, "id", self.of(kind, "id") > 0, "1 or more")
