"""Text of a dump as it may be shown: a name or a message may be anything, also an order to the terminal or a formula.

Every output has one place that asks here: `cli.console` for the terminal, `CsvRows` for files of CSV. JSON and HTML
escape by themselves.

In: nothing of ours.
Out: texts that give no orders, and the one writer of CSV.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from typing import Any, Final, TextIO

# Control characters of ASCII and Latin-1, line and paragraph separators, what changes the direction of text, and halves
# of surrogate pairs, which no encoding can write.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet takes a cell for a formula


def visible(text: str) -> str:
    """Return a text in one line; what is not to be seen, or acts on a terminal, becomes its hexadecimal escape."""
    return _UNSEEN.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Return a text that we made of several lines; what is in them as `visible` has it."""
    return "\n".join(map(visible, text.split("\n")))


def cell(found: Any) -> Any:
    """Return what a cell of a CSV file may hold: a text that a spreadsheet would run begins with an apostrophe.

    Numbers keep all their digits, lists are JSON, and None is empty.
    """
    if isinstance(found, str):
        shown = visible(found)
        return f"'{shown}" if found.startswith(_FORMULA) else shown
    if isinstance(found, list):
        return json.dumps(found)
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else found


class CsvRows:
    """Writes rows to a file of CSV; no other code of ours does."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n")

    def write(self, row: Iterable[Any]) -> None:
        """Write a row, each cell as `cell` has it."""
        self._writer.writerow([cell(found) for found in row])


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
