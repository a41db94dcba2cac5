"""Files that a user names to be written: whole, or as they were.

In: a path, and the dumps that are read.
Out: where to write what is to have such a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ConfigError


def refuse_to_replace_part_of(dumps: Iterable[Path], path: str | os.PathLike[str]) -> None:
    """See that a file or folder to be written is not a dump, whole or in part, and does not hold one.

    Args:
        dumps: what is read to write it.
        path: where it is to be written. A new file beside those of a dump is none of it.

    Raises:
        ConfigError: it would replace something of a dump.
    """
    if not os.path.lexists(path):
        return
    place = Path(path).resolve()
    for dump in dumps:
        source = dump.resolve()
        if place.is_relative_to(source) or source.is_relative_to(place):
            raise ConfigError(f"{path} is the dump {dump}, holds it or lies in it: name a place outside the dump")


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
