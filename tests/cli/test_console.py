"""What is printed: plain in a pipe, all of it unless asked, and nothing that acts on a terminal."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from aten_dump.cli import console
from aten_dump.errors import StoreError
from aten_dump.report.table import Table, names, numbers


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("asked", "in_a_pipe", "on_a_terminal"), [(None, None, 30), (0, None, None), (5, 5, 5)])
def test_nothing_is_left_out_in_a_pipe_unless_asked(
    asked: int | None, in_a_pipe: int | None, on_a_terminal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not console.is_terminal() and console.line_limit(asked, 30) == in_a_pipe
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert console.is_terminal() and console.line_limit(asked, 30) == on_a_terminal


def test_what_a_dump_says_gives_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    console.echo("a\x1b[31mred\x07")
    assert "\x1b" not in capsys.readouterr().out
    console.warn(StoreError("no room\x1b[2J"))
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("Error: no room") and "\x1b" not in err


def table(title: str | None = None) -> Table:
    made = Table(names("call"), numbers("count"), title=title)
    for name, count in (("a" * 300, "7"), ("b\x1b[1m", "1000")):
        made.add_row(name, count)
    return made


def test_a_table_in_a_pipe_is_words_with_no_name_cut(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(table("by call"))
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == ("by call", ["call", "count"])
    assert first.split() == ["a" * 300, "7"] and second.split()[1] == "1000" and "\x1b" not in second
    assert len(first) == len(second) == len(head), "numbers end in one column"


def test_columns_that_end_in_text_have_no_trailing_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    made = Table(names("name"))
    made.add_row("long name")
    console.print_table(made)
    assert capsys.readouterr().out == "name\nlong name\n"


def test_a_table_on_a_terminal_gives_it_no_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)  # here: pytest sets it anew between a fixture and a test
    console.print_table(table())
    assert "1000" in terminal.getvalue() and "b\x1b[1m" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("limit", "printed", "said"), [(None, 3, ""), (3, 3, ""), (2, 2, "... 1 more lines; --limit 0 prints all\n")]
)
def test_lines_that_were_left_out_are_counted(
    capsys: pytest.CaptureFixture[str], limit: int | None, printed: int, said: str
) -> None:
    console.print_lines(["a", "b", "c"], limit)
    out, err = capsys.readouterr()
    assert out.split() == ["a", "b", "c"][:printed] and err == said


@pytest.mark.parametrize("bar", [console.byte_progress, console.count_progress])
def test_a_bar_is_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str], bar: Any) -> None:
    with bar("reading") as update:
        update(1, 2)
        update(2, 2)
    assert list(console.with_progress("reading", [3, 4])) == [3, 4]
    assert capsys.readouterr() == ("", "")


def test_a_bar_makes_way_for_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    for number in console.with_progress("searching", [1, 2, 3]):
        if number > 1:
            console.echo(f"found {number}")
    written = terminal.getvalue()
    assert "searching" in written and "1/3" in written
    left = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line.rpartition("\x1b[2K")[2]) for line in written.splitlines()]
    assert [line for line in left if "found" in line] == ["found 2", "found 3"]
    assert left[-1] == "", "no bar stays"


def test_text_that_is_no_text_of_this_encoding_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console.echo("a\ud800b")
    found = capsys.readouterr().out
    assert found.startswith("a") and found.endswith("b\n") and "\ud800" not in found
