"""Files that a user names to be written: whole, or as they were.

In: nothing of ours.
Out: where to write what is to have such a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_when_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to, which takes the place of `path` when the block ends, and is removed if it raises.

    A link stays one, and what it leads to is replaced. A device or a pipe is written to as it is: replaced,
    ``/dev/null`` would be a file for every process of the machine.
    """
    named = Path(path)
    if named.exists() and not named.is_file() and not named.is_dir():
        yield named
        return
    final = Path(os.path.realpath(named))
    temporary = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)
