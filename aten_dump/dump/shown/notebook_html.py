"""Small pieces of HTML for a notebook: no scripts, no colours, so that light and dark both do.

All text comes through `escaped`: names and messages of a dump may be anything, and never become markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_MOST_ROWS: Final = 12
_MOST_TEXT: Final = 200  # of a name
_MOST_SENTENCE: Final = 2000
_STYLE: Final = """<style>
.aten-dump { line-height: 1.5 }
.aten-dump p { margin: 2px 0; white-space: pre-wrap }
.aten-dump table { border-collapse: collapse; margin: 4px 0; font-size: .92em }
.aten-dump tr > * { padding: 2px 14px 2px 0; vertical-align: baseline; font-weight: normal; white-space: pre-wrap;
  text-align: right; border-bottom: 1px solid rgba(128, 128, 128, .3) }
.aten-dump tr > .text { text-align: left }
.aten-dump th { opacity: .7 }
.aten-dump td, .aten-dump b { font-family: ui-monospace, Menlo, Consolas, monospace }
</style>"""


def escaped(text: Any, most: int = _MOST_TEXT) -> str:
    """Return a text as HTML; what is not to be seen, or turns the direction of text, becomes its escape."""
    plain = str(text)
    cut = plain if len(plain) <= most else f"{plain[:most]}..."
    seen = (one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in cut)
    return html.escape("".join(seen))


def shown(title: str, *parts: str) -> str:
    """Return the whole: a title, and pieces of HTML made by the functions below."""
    return f'<div class="aten-dump">{_STYLE}<p><b>{escaped(title)}</b></p>{"".join(parts)}</div>'


def line(text: str) -> str:
    """Return a sentence."""
    return f"<p>{escaped(text, _MOST_SENTENCE)}</p>" if text else ""


def facts(named: Mapping[str, Any]) -> str:
    """Return names and facts; those that are None or empty are left out."""
    told = [(name, fact) for name, fact in named.items() if fact not in (None, "")]
    return _table("", (f'<th class="text">{escaped(name)}</th>{_cell(fact, True)}' for name, fact in told))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: int = 1) -> str:
    """Return a table of the first rows, and how many there are beyond.

    Args:
        columns: titles.
        rows: cells.
        texts: so many columns from the left are texts, the others numbers.
    """
    if not rows:
        return ""
    head = "".join(f"<th{_class(at < texts)}>{escaped(column)}</th>" for at, column in enumerate(columns))
    body = ("".join(_cell(cell, at < texts) for at, cell in enumerate(row)) for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    return _table(f"<thead><tr>{head}</tr></thead>", body) + (line(f"... and {more} more") if more > 0 else "")


def _class(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def _cell(cell: Any, is_text: bool) -> str:
    return f"<td{_class(is_text)}>{escaped('' if cell is None else cell)}</td>"


def _table(head: str, rows: Iterable[str]) -> str:
    return f"<table>{head}<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"
