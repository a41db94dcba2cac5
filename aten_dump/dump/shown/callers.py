"""From where a line is called, where that is several places: a helper's line alone does not say which use it is."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..argument_decoding import Frame
from ..index.tables import Tables
from .source_lines import is_within_backward

_Chain = tuple[int, ...]  # ids of the user's frames of a stack, innermost first


class Callers:
    """The callers of the user's lines in one recording."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._first: dict[int, int] = {}
        self._within: dict[int, bool] = {}

    def of(self, stack: int) -> Frame | None:
        """Return the innermost frame of a stack at which calls from the same line come from several places."""
        chain = self._chain(stack)
        if not chain:
            return None
        alike = {self._chain(other) for other in self._by_line.get(chain[0], ())}
        for depth in range(1, len(chain)):
            if len({other[depth : depth + 1] for other in alike}) > 1:
                return self._frame(chain[depth])
        return None

    def is_within_backward(self, stack: int) -> bool:
        """True if code of the program's, or of a library, runs within the backward pass; `stack` is of such a call."""
        found = self._within.get(stack)
        if found is None:
            found = self._within[stack] = is_within_backward(self._tables.stack(stack))
        return found

    @cached_property
    def _by_line(self) -> dict[int, list[int]]:
        """Stacks of all calls, by the user's innermost frame."""
        found: dict[int, list[int]] = {}
        for stack in np.unique(self._tables.calls.column("stack")).tolist():
            first = self._innermost(stack)
            if first:
                found.setdefault(first, []).append(stack)
        return found

    def _innermost(self, stack: int) -> int:
        """Return the id of the user's innermost frame of a stack, 0 for none."""
        passed = []
        while stack and stack not in self._first:
            passed.append(stack)
            link = self._tables.stacks.find(stack)
            frame = None if link is None else self._tables.frames.find(link.frame)
            if link is not None and frame is not None and frame.user:
                self._first[stack] = link.frame
                break
            stack = 0 if link is None else link.parent
        found = self._first.get(stack, 0)
        self._first.update(dict.fromkeys(passed, found))
        return found

    def _chain(self, stack: int) -> _Chain:
        found = []
        while stack:
            link = self._tables.stacks.find(stack)
            if link is None:
                break
            frame = self._tables.frames.find(link.frame)
            if frame is not None and frame.user:
                found.append(link.frame)
            stack = link.parent
        return tuple(found)

    def _frame(self, number: int) -> Frame:
        frame = self._tables.frames[number]
        return Frame(self._tables.text(frame.file), frame.line, self._tables.text(frame.function), bool(frame.user))
