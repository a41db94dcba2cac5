"""A table as lines of text: for a pipe, or for a terminal of some width.

Theory of operation
    In a pipe every column is as wide as its widest cell, and nothing is cut. On a terminal the same lines must fit:
    a column of *names* may be cut, with an ellipsis in the middle, as names differ at their ends; never inside of a
    number. A column of *words* or *numbers* is shown whole or left out whole, those that can be spared most first, and
    `Layout.left_out` names them. So no digit is ever missing without a word about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len

from ..plain_text import visible

_GAP: Final = "  "
_ELLIPSIS: Final = "…"
_RULE: Final = "─"
_NARROWEST: Final = 20  # a name is not cut further while a column can be spared


@dataclass(frozen=True, slots=True)
class Column:
    """A column; of several, the one that can be spared most is left out first, and of equals the last."""

    title: str
    holds: Literal["names", "words", "numbers"]
    spare: int = 0

    def aligned(self, text: str, width: int) -> str:
        blank = " " * (width - cell_len(text))
        return blank + text if self.holds == "numbers" else text + blank


def names(title: str, spare: int = 0) -> Column:
    """Return a column of names, which may be cut."""
    return Column(title, "names", spare)


def words(title: str, spare: int = 0) -> Column:
    """Return a column of short texts, which are whole."""
    return Column(title, "words", spare)


def numbers(title: str, spare: int = 0) -> Column:
    """Return a column of numbers, which are whole."""
    return Column(title, "numbers", spare)


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of a table, title, head and rule among them, and the titles of the columns that had no room."""

    lines: list[str]
    left_out: list[str]


class Table:
    """Rows of texts under columns."""

    def __init__(self, *columns: Column, title: str | None = None) -> None:
        self.title = title
        self.columns = columns
        self.rows: list[list[str]] = []

    def add_row(self, *cells: object) -> None:
        """Add a row, a cell for each column."""
        assert len(cells) == len(self.columns)
        self.rows.append([visible(str(cell)) for cell in cells])

    def for_pipe(self) -> Iterator[str]:
        """Yield the lines for a pipe: every cell whole, no trailing spaces."""
        yield from self._lines(
            range(len(self.columns)), [self._width(at) for at in range(len(self.columns))], rule=False
        )

    def for_terminal(self, width: int) -> Layout:
        """Lay it out for a terminal that shows `width` characters in a line."""
        kept = list(range(len(self.columns)))
        natural = [self._width(at) for at in kept]
        least = [
            min(natural[at], max(_NARROWEST, len(column.title))) if column.holds == "names" else natural[at]
            for at, column in enumerate(self.columns)
        ]
        while len(kept) > 1 and sum(least[at] + len(_GAP) for at in kept) - len(_GAP) > width:
            kept.remove(max(kept[1:], key=lambda at: (self.columns[at].spare, at)))
        named = [at for at in kept if self.columns[at].holds == "names"]
        room = width - sum(natural[at] for at in kept if at not in named) - len(_GAP) * (len(kept) - 1)
        widest = _widest([natural[at] for at in named], room)
        widths = [min(natural[at], widest) if at in named else natural[at] for at in kept]
        left_out = [column.title for at, column in enumerate(self.columns) if at not in kept]
        return Layout(list(self._lines(kept, widths, rule=True)), left_out)

    def _width(self, at: int) -> int:
        return max(cell_len(text) for text in (self.columns[at].title, *(row[at] for row in self.rows)))

    def _lines(self, kept: Sequence[int], widths: Sequence[int], *, rule: bool) -> Iterator[str]:
        if self.title is not None:
            yield self.title
        for number, row in enumerate([[column.title for column in self.columns], *self.rows]):
            cells = [
                self.columns[at].aligned(shortened(row[at], width), width)
                for at, width in zip(kept, widths, strict=True)
            ]
            yield _GAP.join(cells).rstrip()
            if rule and number == 0:
                yield _RULE * (sum(widths) + len(_GAP) * (len(widths) - 1))


def _widest(widths: Sequence[int], room: int) -> int:
    """Return the most that columns may take, for all of them to fit into `room`."""
    widest = max(widths, default=1)
    while widest > 1 and sum(min(width, widest) for width in widths) > room:
        widest -= 1
    return widest


def shortened(text: str, width: int) -> str:
    """Return a name in at most `width` characters, cut in the middle; a number in it is there whole or not at all."""
    found, size = text, width
    while cell_len(found) > width:  # once, unless characters are wide
        found = _cut(text, size)
        size -= 1
    return found


def _cut(text: str, size: int) -> str:
    if size <= 1:
        return _ELLIPSIS[:size]
    tail = len(text) - size * 3 // 5  # names of calls differ at their ends: number and phase
    while tail > len(text) - size + 1 and text[tail - 1 : tail + 1].isdecimal():
        tail -= 1
    while text[tail - 1 : tail].isdecimal() and text[tail : tail + 1].isdecimal():
        tail += 1
    head = size - 1 - (len(text) - tail)
    while head and text[head - 1].isdecimal() and text[head].isdecimal():
        head -= 1
    return text[:head] + _ELLIPSIS + text[tail:]
