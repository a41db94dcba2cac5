"""Files that a subcommand writes a table to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from ..errors import StoreError
from ..whole_files import replaced_when_whole

ESCAPED: Final = "backslashreplace"  # what no encoding can write, such as a path that is not UTF-8


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Open a file to write, or stdout; see `replaced_when_whole`.

    Raises:
        StoreError: the file cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    try:
        with replaced_when_whole(path) as part, open(part, "w", encoding="utf-8", newline="", errors=ESCAPED) as file:
            yield file
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --output") from error
