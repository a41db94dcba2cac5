"""The command to run next, as the last line of an answer: ready to paste."""

from __future__ import annotations

import shlex


def next_line(command: str, *arguments: str, step: int | None = None, rank: int | None = None) -> str:
    """Return a line such as ``next: aten-dump show dump Aten.mm.3.forward --step 5 --rank 0``.

    Args:
        command: of aten-dump.
        arguments: the dump, then what is asked about.
        step: that the answer is about, whatever step the command would take by itself; None: all.
        rank: the same.
    """
    place = [
        text
        for name, number in (("step", step), ("rank", rank))
        if number is not None
        for text in _option(name, number)
    ]
    return f"next: {shlex.join(('aten-dump', command, *arguments, *place))}"


def _option(name: str, number: int) -> tuple[str, str]:
    return f"--{name}", str(number)
