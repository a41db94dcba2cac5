"""Files that a subcommand writes a table to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from ..errors import StoreError
from ..whole_files import refuse_to_replace_part_of, replaced_when_whole

ESCAPED: Final = "backslashreplace"  # what no encoding can write, such as a path that is not UTF-8


@contextmanager
def opened(path: Path | None, dumps: Iterable[Path] = ()) -> Iterator[TextIO]:
    """Open a file to write, or stdout; see `replaced_when_whole`.

    Args:
        path: the file; None is stdout.
        dumps: what is read to write it.

    Raises:
        ConfigError: the file is part of a dump.
        StoreError: it cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    refuse_to_replace_part_of(dumps, path)
    try:
        with replaced_when_whole(path) as part, open(part, "w", encoding="utf-8", newline="", errors=ESCAPED) as file:
            yield file
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --output") from error
