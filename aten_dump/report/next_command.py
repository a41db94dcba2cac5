"""The command to run next, as the last line of an answer: ready to paste."""

from __future__ import annotations

import shlex


def next_line(command: str, *arguments: str, step: int, rank: int) -> str:
    """Return a line such as ``next: aten-dump show dump Aten.mm.3.forward --step 5 --rank 0``.

    Args:
        command: of aten-dump.
        arguments: the dump, then what is asked about.
        step: that the answer is about, whatever step the command would take by itself.
        rank: the same.
    """
    return f"next: {shlex.join(('aten-dump', command, *arguments))} --step {step} --rank {rank}"
