"""Commands that a message says to run next: whole, quoted, with the step and rank they are about."""

from __future__ import annotations

import os
import shlex


def command_line(
    command: str, dump: str | os.PathLike[str], *arguments: str, step: int | None = None, rank: int | None = None
) -> str:
    """Return a command to paste: ``aten-dump show 'my dump' Aten.add.0.forward --step 3 --rank 0``."""
    words = ["aten-dump", command, os.fspath(dump), *arguments]
    words += [] if step is None else ["--step", str(step)]
    words += [] if rank is None else ["--rank", str(rank)]
    return shlex.join(words)


def next_line(
    command: str, dump: str | os.PathLike[str], *arguments: str, step: int | None = None, rank: int | None = None
) -> str:
    """Return the last line of an answer: ``Next: aten-dump show dump Aten.mm.3.forward --step 5 --rank 0``.

    Args:
        command: of aten-dump.
        dump: what it is asked of.
        arguments: what is asked about.
        step: that the answer is about, whatever step the command would take by itself; None: all.
        rank: the same.
    """
    return f"Next: {command_line(command, dump, *arguments, step=step, rank=rank)}"
