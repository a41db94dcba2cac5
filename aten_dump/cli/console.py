"""Where output goes: text and tables to stdout, progress to stderr, both plain in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from ..errors import AtenDumpError
from ..plain_text import visible_lines
from ..report.table import Table
from .formats import before_output, is_for_records

_TERMINAL_LINES: Final = 200
_USUAL_WIDTH: Final = 80
_ASCII: Final = str.maketrans("…─", "~-")

_bars: Final[list[Progress]] = []  # that are shown, or were until something was printed

Item = TypeVar("Item")


class Update(Protocol):
    """Takes how much is done, of how much."""

    def __call__(self, done: int, total: int) -> None: ...


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line, which may hold text of a dump; all output to a terminal passes through here.

    A progress bar makes way for it, and is back with the next task that is done.
    """
    _make_way()
    click.echo(visible_lines(text), err=err or is_for_records())


def _make_way() -> None:
    for bar in _bars:
        if bar.live.is_started:
            bar.stop()


before_output.append(_make_way)


def is_terminal() -> bool:
    """Return True if stdout is a terminal."""
    return sys.stdout.isatty()


def line_limit(limit: int | None, default: int = _TERMINAL_LINES) -> int | None:
    """Return the most lines to print; None is all. Nothing is left out in a pipe unless asked for."""
    if limit is None:
        return default if is_terminal() else None
    return limit or None


def print_table(table: Table) -> None:
    """Print a table to stdout: whole in a pipe, in the width of the terminal on one; all tables pass through here.

    The line after it names the columns for which a terminal has no room.
    """
    if not is_terminal():
        for line in table.for_pipe():
            echo(line)
        return
    width = _terminal_width()
    layout = table.for_terminal(width)
    for line in layout.lines:
        echo(line if _writes_unicode() else line.translate(_ASCII))
    if layout.left_out:
        echo(f"no room at {width} columns for: {', '.join(layout.left_out)} (a wider terminal or a pipe shows them)")


def _terminal_width() -> int:
    """Return how many characters a line of the terminal shows; the variable COLUMNS goes first, as everywhere."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _USUAL_WIDTH
    except OSError:
        return _USUAL_WIDTH


def _writes_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def print_lines(lines: Iterable[str], limit: int | None = None) -> None:
    """Print lines to stdout, and to stderr how many `limit` left out."""
    left_out = 0
    for number, line in enumerate(lines):
        if limit is None or number < limit:
            echo(line)
        else:
            left_out += 1
    say_left_out(left_out, "lines")


def say_left_out(count: int, what: str) -> None:
    """Print to stderr that something was not printed."""
    if count:
        echo(f"... {count} more {what}; --limit 0 prints all", err=True)


@contextmanager
def byte_progress(title: str) -> Iterator[Update]:
    """Show a bar of bytes on stderr while a block runs, if stderr is a terminal."""
    with _bar(DownloadColumn(binary_units=True)) as bar:
        yield _updates(bar, title)


@contextmanager
def count_progress(title: str) -> Iterator[Update]:
    """Show a bar of things done on stderr while a block runs, if stderr is a terminal."""
    with _bar(MofNCompleteColumn()) as bar:
        yield _updates(bar, title)


def with_progress(title: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield items with a bar on stderr, if that is a terminal."""
    with count_progress(title) as update:
        update(0, len(items))
        for done, item in enumerate(items, 1):
            yield item
            update(done, len(items))


@contextmanager
def _bar(counts: ProgressColumn) -> Iterator[Progress]:
    with Progress(
        TextColumn("{task.description}"), BarColumn(), counts, TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
        redirect_stdout=False, redirect_stderr=False,  # `echo` takes the bar away
    ) as bar:  # fmt: skip
        _bars.append(bar)
        try:
            yield bar
        finally:
            _bars.remove(bar)


def _updates(bar: Progress, title: str) -> Update:
    task = bar.add_task(title, total=None)

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started:
            bar.start()

    return update


def warn(error: AtenDumpError) -> None:
    """Print an error to stderr and go on."""
    echo(f"Error: {error}", err=True)
