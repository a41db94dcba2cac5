"""What a step that is held back names by number: texts, ops, frames and stacks, and its notes."""

from __future__ import annotations

from typing import Any

from ...patterns import is_of_library
from ...store import records as r


class HeldTables:
    """The tables and notes of one step, in order, until its files begin."""

    def __init__(self) -> None:
        self._tables: list[tuple[Any, ...]] = []
        self._notes: list[r.Note] = []
        self._ops: dict[int, r.Op] = {}
        self._texts: dict[int, str] = {}
        self._places: dict[tuple[int, int], Any] = {}  # frames and stacks, by kind and id

    def learn(self, record: Any) -> None:
        """Take a Text, Op, Frame or Stack record, to be asked about later."""
        if record.kind == r.OP:
            self._ops[record.id] = record
        elif record.kind == r.TEXT:
            self._texts[record.id] = record.text
        else:
            self._places[record.kind, record.id] = record

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

    def source(self, stack: int) -> str:
        """Return the innermost line that is not torch's, and the user's that it came from; empty for none."""
        lines: list[str] = []
        while stack:
            one = self._places[r.STACK, stack]
            frame = self._places[r.FRAME, one.frame]
            file = self.text(frame.file)
            if frame.user or (not lines and is_of_library(file)):
                lines.append(f"{file}:{frame.line} in {self.text(frame.function)}")
            stack = 0 if frame.user else one.parent
        return ", from ".join(lines)

    def has_op(self, op: str) -> bool:
        """Return True if there is an op of this name."""
        return any(one.op == op for one in self._ops.values())
