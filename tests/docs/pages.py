"""Runs a page of the docs: its programs are written, its commands and code are run, its outputs are compared.

``python -m tests.docs.pages docs/tutorial.md`` writes what was printed into the page.

Theory of operation
    A page is run from top to bottom in one folder. ```python title="train.py"``` is a file; other Python is run, all of
    a page in one namespace. ```console``` holds commands after ``$ `` and what each prints; so does ```text``` after Python.
    A line ``...`` stands for any lines. Numbers that a machine may decide (with a point, or of three digits and more) are
    not compared, nor is white space.

    Commands of aten-dump run in this process, as each new one would import torch; but `run` and `serve`, which are started.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from aten_dump.cli.main import main
from tests.checkout import ROOT

BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+|\b\d{3,}\b|\b\d{1,3}(?:,\d{3})+\b|0x[0-9a-f]+")
DISTANCE = re.compile(r"(?:\b\d+|#) (?:ulp|KiB|MiB|min|s|ms|us|ns)\b")
STARTED = ("run", "serve")
HOME = "/home/me/tutorial"  # where the tutorial was written


@dataclass(slots=True)
class Said:
    """What a part of a page prints, and what it is said to print."""

    source: str
    expected: str | None  # None: the page does not say
    printed: str

    @property
    def agrees(self) -> bool:
        if self.expected is None:
            return True
        printed = self.printed.replace(os.getcwd(), HOME)
        pieces = re.split(r"(?m)^\s*\.\.\.\s*$", self.expected)
        return (
            re.fullmatch(".*".join(re.escape(plain(piece)) for piece in pieces), plain(printed), re.DOTALL) is not None
        )


def plain(text: str) -> str:
    """Return a text without white space, rules of tables, and numbers that a machine decides."""
    return re.sub(r"[\s─-]+", "", DISTANCE.sub("#", NUMBER.sub("#", text)))


class Page:
    """A page that is run in a folder, which is the present one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, Any] = {"__name__": "__page__"}

    def run(self) -> Iterator[Said]:
        """Run all of it, in order."""
        blocks = list(BLOCK.finditer(self.path.read_text(encoding="utf-8")))
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            language, title, body = block.groups()
            if language == "console":
                yield from self._commands(body)
            elif title is not None:
                Path(title).write_text(body, encoding="utf-8")
            elif language == "python":
                said = after[3] if after is not None and after[1] == "text" else None
                yield Said(body, said, self._code(body))

    def _code(self, code: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, str(self.path), "exec"), self._names)
        return printed.getvalue()

    def _commands(self, body: str) -> Iterator[Said]:
        for part in re.split(r"(?m)^\$ ", body)[1:]:
            line, _, expected = part.partition("\n")
            yield Said(line, expected, command(line.partition("  #")[0]))


def command(line: str) -> str:
    """Run a command line; return what it prints on both streams.

    Raises:
        AssertionError: it could not be run. That something was found (exit code 1) is no failure.
    """
    words = shlex.split(line)
    if words[0] == "aten-dump" and words[1] not in STARTED and not set(words) & {"|", "&&", ";"}:
        done = CliRunner().invoke(main, words[1:])
        assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
        assert done.exit_code in (0, 1) or "interrupted" in done.output or "no answer" in done.output, (
            line,
            done.output,
        )
        return done.output
    names = {"aten-dump": f"{shlex.quote(sys.executable)} -m aten_dump", "python": shlex.quote(sys.executable)}
    for name, means in names.items():
        line = re.sub(rf"(?<![\w./-]){name}(?![\w.-])", means, line)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}" if words[1] == "serve" else line],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if words[1] == "serve":
        assert process.stdout is not None
        first = process.stdout.readline()  # it serves until Ctrl-C
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        return first
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, (line, printed)
    return printed


def rewrite(path: Path) -> None:
    """Run a page and write what was printed into it."""
    text, began = path.read_text(encoding="utf-8"), time.perf_counter()
    for said in Page(path).run():
        print(f"{time.perf_counter() - began:6.1f} s  {said.source.strip().splitlines()[0]}", file=sys.stderr)
        if said.expected is not None and not said.agrees:
            head = f"{said.source}```\n\n```text\n" if said.source.endswith("\n") else f"$ {said.source}\n"
            assert head + said.expected in text, said.source
            printed = said.printed.replace(os.getcwd(), HOME).rstrip()
            text = text.replace(head + said.expected, f"{head}{printed}\n" if printed else head, 1)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        page = Path(name).resolve()
        os.chdir(tempfile.mkdtemp())
        rewrite(page)
