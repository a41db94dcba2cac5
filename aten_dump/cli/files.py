"""Files that a subcommand writes a table to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from ..errors import StoreError

ESCAPED: Final = "backslashreplace"  # what no encoding can write, such as a path that is not UTF-8


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Open a file to write, or stdout. It has its name only when it is whole; one that was there stays until then.

    Raises:
        StoreError: the file cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    if path.exists() and not path.is_file():  # a device, a pipe: it is written to as it is
        with open(path, "w", encoding="utf-8", newline="", errors=ESCAPED) as file:
            yield file
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with open(temporary, "x", encoding="utf-8", newline="", errors=ESCAPED) as file:
                yield file
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --output") from error
