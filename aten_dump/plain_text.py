"""Text as it may be shown or kept: a name or message may be an order to the terminal, a formula, or hold a secret.

Every output has one place that asks here: `cli.console` for the terminal, `CsvRows` for files of CSV. JSON and HTML
escape by themselves.

In: nothing from this package.
Out: texts that give no orders, commands without secrets, and the one writer of CSV.
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
_NUMBERS: Final = frozenset({int, float})
_MOST_TEXTS: Final = 1 << 14
_HIDDEN: Final = "***"
_NAME: Final = r"(?:key(?!word|board)|token(?!iz)|secret|passw|passphrase|pwd|credential|authorization)"
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
_SECRET: Final = re.compile(rf"({_NAME}[\w.\-\]]*[\"']?\s*[=:]\s*).+", re.IGNORECASE | re.DOTALL)
_LOGIN: Final = re.compile(r"(://)[^/@\s]+@")  # user and password of an address


def counted(count: int, what: str) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


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
    """Writes rows to a CSV file; no other code of the package does."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._texts: dict[str, str] = {}  # cells by what they hold: names of calls come again with each step

    def write(self, row: Iterable[Any]) -> None:
        """Write a row, each cell as `cell` has it."""
        self._writer.writerow([found if type(found) in _NUMBERS else self._cell(found) for found in row])

    def _cell(self, found: Any) -> Any:
        if type(found) is not str:
            return cell(found)
        shown = self._texts.get(found)
        if shown is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            shown = self._texts[found] = cell(found)
        return shown


def without_secrets(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command with ``***`` for the values of what is named as a secret.

    A value is what follows ``=`` or ``:``, or all arguments between an option and the next. Rather one too many
    (``--max-tokens ***``) than one too few.
    """
    found = []
    is_secret = False
    for argument in arguments:
        if argument.startswith("-") and len(argument) > 1:
            is_secret = _SECRET_NAME.search(argument) is not None and not _SECRET.search(argument)
            shown = argument
        else:
            shown = _HIDDEN if is_secret else argument
        found.append(_LOGIN.sub(rf"\1{_HIDDEN}@", _SECRET.sub(rf"\1{_HIDDEN}", shown)))
    return found


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
