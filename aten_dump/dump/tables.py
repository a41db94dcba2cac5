"""Tables: the records of one index, by kind and id, as every handle looks them up.

Theory of operation
    The store hands over verified rows by kind; here they become plain dicts and lists of typed records, and
    nothing inside them is decoded that is not asked for. Later records of the same id replace earlier ones.
    ``Open`` records whose ``Call`` never came are kept as calls that did not finish, so that an interrupted
    dump has the same shape as a whole one.
"""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..store import records
from ..store.index import IndexData, Row, paused_gc
from .rows import Records, RecordTable, check_sizes
from .trees import Frame


class Tables:
    """The records of one index by kind and id."""

    def __init__(self, data: IndexData, where: str) -> None:
        """Sort rows into tables; `where` names the index in errors.

        Raises:
            FormatError: a record has too few fields.
        """
        self.where = where
        self.path: Path = data.path
        self.dropped_bytes = data.dropped_bytes  # torn, at the end of the index
        self.header: records.Header = data.header or _NO_HEADER
        self.has_header = data.header is not None
        self.commit: records.Commit | None = data.commit
        self._names: dict[int, str] = {}
        for kind, record_type in records.RECORD_TYPES.items():
            check_sizes(data.rows[kind], record_type, str(data.path))
        with paused_gc():
            self._sort(data.rows)

    def _sort(self, rows: dict[int, list[Row]]) -> None:
        self.texts: dict[int, str] = {row[1]: row[2] for row in rows[records.TEXT]}
        self.ops = RecordTable(rows[records.OP], records.Op)
        self.frames = RecordTable(rows[records.FRAME], records.Frame)
        self.stacks = RecordTable(rows[records.STACK], records.Stack)
        self.storages = RecordTable(rows[records.STORAGE], records.Storage)
        self.values = RecordTable(rows[records.VALUE], records.Value)
        self.shards = RecordTable(rows[records.SHARD], records.Shard)
        self.blobs = RecordTable(rows[records.BLOB], records.Blob)
        self.data = RecordTable(rows[records.DATA], records.Data)  # by value id
        self.statistics: dict[int, tuple[Any, ...]] = {row[1]: row[2] for row in rows[records.STATISTICS]}
        self.hashes: dict[int, bytes] = {row[1]: row[2] for row in rows[records.HASH]}
        self.same: dict[int, list[Row]] = {}
        for row in rows[records.SAME]:
            self.same.setdefault(row[1], []).append(row)
        self.saved = Records(rows[records.SAVED], records.Saved)
        self.gradients = Records(rows[records.GRADIENT], records.Gradient)
        self.notes = Records(rows[records.NOTE], records.Note)
        self.random = RecordTable(rows[records.RANDOM], records.Random)  # by call id
        self._sort_calls(rows)

    def _sort_calls(self, rows: dict[int, list[Row]]) -> None:
        finished = {row[1] for row in rows[records.CALL]}
        begun = RecordTable(rows[records.OPEN], records.Open)
        self.unfinished = frozenset(begun) - finished  # ids
        cut_short = [tuple(_call_of(begun[id])) for id in self.unfinished]
        self.calls = Records(sorted(rows[records.CALL] + cut_short, key=itemgetter(1)), records.Call)  # in order of id

    @cached_property
    def positions(self) -> dict[int, int]:
        """Position in `calls` by call id."""
        return {row[1]: position for position, row in enumerate(self.calls.rows)}

    def text(self, number: int) -> str:
        """Return an interned text; ``""`` for none."""
        return self.texts.get(number, "")

    def op(self, number: int) -> records.Op:
        """Return an op.

        Raises:
            FormatError: a call names an op that the index does not have.
        """
        try:
            return self.ops[number]
        except KeyError:
            raise FormatError(
                f"{self.where} names op {number}, which it does not hold; run `aten-dump verify`"
            ) from None

    def call_name(self, call: records.Call) -> str:
        """Render ``{Prefix}.{api}.{n}.{phase}`` and, for a further backward, ``.{repeat}``."""
        head = self._names.get(call.op)
        if head is None:
            op = self.op(call.op)
            head = self._names[call.op] = f"{op.prefix}.{op.api}"
        name = f"{head}.{call.n}.{records.PHASES[call.phase]}"
        return f"{name}.{call.repeat}" if call.repeat else name

    def stack(self, number: int) -> list[Frame]:
        """Return the frames of a stack, innermost first."""
        frames: list[Frame] = []
        while number:
            link = self.stacks.get(number)
            frame = None if link is None else self.frames.get(link.frame)
            if link is None or frame is None:
                break
            frames.append(Frame(self.text(frame.file), frame.line, self.text(frame.function), bool(frame.user)))
            number = link.parent
        return frames

    def same_as(self, value: int, fact: int, known: Container[int]) -> int:
        """Return the value that holds a fact (bit of ``Same.facts``) of `value`: itself, or one it shares it with."""
        seen: set[int] = set()
        while value not in known and value not in seen:
            seen.add(value)
            others = [other for _, _, other, facts, *_ in self.same.get(value, ()) if facts & fact]
            value = others[-1] if others else value
        return value


_NO_HEADER = records.Header(records.HEADER, records.FORMAT_VERSION, -1, -1, 0, 0, 0, {})


def _call_of(record: records.Open) -> records.Call:
    """Return the call that an ``Open`` record began, as far as it is known."""
    return records.Call(
        records.CALL,
        id=record.id,
        parent=record.parent,
        op=record.op,
        n=record.n,
        repeat=0,
        phase=record.phase,
        thread=record.thread,
        start_ns=record.start_ns,
        duration_ns=0,
        sequence_nr=None,
        stack=record.stack,
        module=record.module,
        forward=0,
        args=[],
        kwargs=None,
        outputs=None,
        written=None,
        error=None,
    )
