"""Tables: the records of one index, by kind and id, as every handle looks them up.

Theory of operation
    The store hands over verified rows by kind, which are decoded when they are looked at; here they get their order
    and can be found by id. Later records of the same id replace earlier ones.
    ``Open`` records whose ``Call`` never came are kept as calls that did not finish, so that an interrupted
    dump has the same shape as a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import FormatError
from ...store import records
from ...store.checking.references import check_references
from ...store.index_reader import IndexData
from ...store.raw_rows import MadeRows, RawRows
from ..argument_decoding import Frame
from .call_modes import CallModes
from .call_table import CallTable
from .pattern import Pattern
from .typed_rows import Facts, Groups, Places, Records, RecordTable


class Tables:
    """The records of one index by kind and id.

    It has more than fifteen attributes, as there are more than fifteen kinds of record: one table for each.
    """

    def __init__(self, data: IndexData, where: str) -> None:
        """Sort rows into tables; `where` names the index in errors.

        Raises:
            FormatError: ids or references make no sense.
        """
        check_references(data.rows, where)
        self.pattern = Pattern(data.rows)  # one object for all tables that repeat these
        self._take(data, where)
        self._names: dict[int, str] = {}
        self._reported: dict[int, str] = {}
        self._sort(data.rows)

    def repeated_by(self, data: IndexData, where: str) -> Tables | None:
        """Return the tables of another index that says the same (`pattern`), else None.

        What was checked and sorted here holds there: the steps of a long run are read in a part of the time.
        """
        if self.unfinished or not self.pattern.is_of(data.rows):
            return None
        found = copy(self)
        found._take(data, where)
        found._sort_own(data.rows)
        found.calls = self.calls.with_rows(data.rows[records.CALL])
        return found

    def _take(self, data: IndexData, where: str) -> None:
        self.where = where
        self.path: Path = data.path
        self.index_bytes = data.good_bytes + data.dropped_bytes
        self.dropped_bytes = data.dropped_bytes  # at the end of the index: torn, or damaged
        self.damage = data.damage  # why they are not what was written; None: they were never written whole
        self.lost_commit = data.lost_commit  # among them
        self.header: records.Header = data.header or _NO_HEADER
        self.has_header = data.header is not None
        self.commit: records.Commit | None = data.commit

    def _sort(self, rows: Mapping[int, RawRows]) -> None:
        self.texts: dict[int, str] = {row[1]: row[2] for row in rows[records.TEXT]}
        self.ops = RecordTable(rows[records.OP], records.Op)
        self.frames = RecordTable(rows[records.FRAME], records.Frame)
        self.stacks = RecordTable(rows[records.STACK], records.Stack)
        self.storages = RecordTable(rows[records.STORAGE], records.Storage)
        self.values = RecordTable(rows[records.VALUE], records.Value)
        self.shards = RecordTable(rows[records.SHARD], records.Shard)
        self.blobs = RecordTable(rows[records.BLOB], records.Blob)
        self.data = RecordTable(rows[records.DATA], records.Data)  # by value id
        self._same_rows = rows[records.SAME]
        self.saved = Records(rows[records.SAVED], records.Saved)
        self.gradients = Records(rows[records.GRADIENT], records.Gradient)
        self.notes = Records(rows[records.NOTE], records.Note)
        self.random = RecordTable(rows[records.RANDOM], records.Random)  # by call id
        begun = RecordTable(rows[records.OPEN], records.Open)
        self.unfinished = frozenset(begun) - frozenset(self._finished(rows, begun))  # ids
        self.calls = CallTable(rows[records.CALL], MadeRows(_call_of(begun[id]) for id in sorted(self.unfinished)))
        self.parameters = Records(rows[records.PARAMETERS], records.Parameters)
        self.graphs = RecordTable(rows[records.GRAPH], records.Graph)
        self.kernels = RecordTable(rows[records.KERNEL], records.Kernel)  # by op id
        self.stages = Records(rows[records.STAGE], records.Stage)
        self.modes = CallModes(rows[records.MODE], self.calls)
        self._sort_own(rows)

    def _sort_own(self, rows: Mapping[int, RawRows]) -> None:
        """Sort what each step has of its own, however alike steps are."""
        self.statistics = Facts(rows[records.STATISTICS], records.Statistics)
        self.hashes = Facts(rows[records.HASH], records.Hash)
        self.packed = RecordTable(rows[records.PACKED], records.Packed)
        self.fetched = Records(rows[records.FETCHED], records.Fetched)
        self.optimizer_groups = Records(rows[records.OPTIMIZER_GROUPS], records.OptimizerGroups)

    @staticmethod
    def _finished(rows: Mapping[int, RawRows], begun: RecordTable[records.Open]) -> list[int]:
        ids = np.array(list(begun), np.int64)
        finished: list[int] = ids[np.isin(ids, rows[records.CALL].column(1))].tolist()
        return finished

    @cached_property
    def _same(self) -> Groups:
        """Positions of the rows that say what a value shares with others, by its id."""
        return Groups(self._same_rows.column(1))

    @property
    def positions(self) -> Places:
        """Position in `calls` by call id."""
        return self.calls.places

    def text(self, number: int) -> str:
        """Return an interned text; ``""`` for none."""
        return self.texts.get(number, "")

    def op(self, number: int) -> records.Op:
        """Return an op.

        Raises:
            FormatError: a call names an op that the index does not have.
        """
        found = self.ops.find(number)
        if found is None:
            raise FormatError(f"{self.where} names op {number}, which it does not hold; run `aten-dump verify`")
        return found

    def call_name(self, call: records.Call) -> str:
        """Render ``{Prefix}.{api}.{n}.{phase}`` and, for a further backward, ``.{repeat}``."""
        return self.render(call.op, call.n, call.phase, call.repeat)

    def render(self, op: int, n: int, phase: int, repeat: int) -> str:
        """Render the name of a call of an op, by id; see `call_name`."""
        name = f"{self.call_head(op)}.{n}.{records.PHASES[phase]}"
        return f"{name}.{repeat}" if repeat else name

    def call_head(self, op: int) -> str:
        """Return prefix and api, with which the names of an op's calls begin."""
        head = self._names.get(op)
        if head is None:
            record = self.op(op)
            head = self._names[op] = f"{record.prefix}.{record.api}"
        return head

    def stack(self, number: int) -> list[Frame]:
        """Return the frames of a stack, innermost first."""
        frames: list[Frame] = []
        while number:
            link = self.stacks.find(number)
            frame = None if link is None else self.frames.find(link.frame)
            if link is None or frame is None:
                break
            frames.append(Frame(self.text(frame.file), frame.line, self.text(frame.function), bool(frame.user)))
            number = link.parent
        return frames

    def told(self, stack: int, tell: Callable[[list[Frame]], str]) -> str:
        """Return what is said of the frames of a stack, which many calls share; each is said once."""
        found = self._reported.get(stack)
        if found is None:
            found = self._reported[stack] = tell(self.stack(stack))
        return found

    def same_as(self, value: int, fact: int, known: Container[int]) -> int:
        """Return the value that holds a fact (bit of ``Same.facts``) of `value`: itself, or one it shares it with."""
        seen: set[int] = set()
        while value not in known and value not in seen:
            seen.add(value)
            same = (self._same_rows[position] for position in self._same.get(value, ()))
            others = [other for _, _, other, facts, *_ in same if facts & fact]
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
        stack=record.stack,
        module=record.module,
        args=record.args,
        kwargs=record.kwargs,
    )
