"""What a step that is held back names by number: texts, ops, frames and stacks, and its notes."""

from __future__ import annotations

from typing import Any

from ...store import records as r


class HeldTables:
    """The tables and notes of one step, in order, until its files begin."""

    def __init__(self) -> None:
        self._tables: list[tuple[Any, ...]] = []
        self._notes: list[r.Note] = []
        self._ops: dict[int, r.Op] = {}
        self._texts: dict[int, str] = {}

    def learn(self, record: Any) -> None:
        """Take a Text, Op, Frame or Stack record, to be asked about later."""
        if record.kind == r.OP:
            self._ops[record.id] = record
        elif record.kind == r.TEXT:
            self._texts[record.id] = record.text

    def hold(self, record: Any) -> None:
        """Hold a record until the files begin."""
        (self._notes if record.kind == r.NOTE else self._tables).append(record)

    def release(self) -> list[tuple[Any, ...]]:
        """Return what was held, tables first, and hold it no more."""
        held: list[tuple[Any, ...]] = [*self._tables, *self._notes]
        self._tables, self._notes = [], []
        return held

    def op(self, number: int) -> r.Op:
        """Return an op by its id."""
        return self._ops[number]

    def text(self, number: int) -> str:
        """Return an interned text; empty for none."""
        return self._texts.get(number, "")

    def has_op(self, op: str) -> bool:
        """Return True if there is an op of this name."""
        return any(one.op == op for one in self._ops.values())
