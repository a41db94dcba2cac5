"""Files that a subcommand writes a table to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ..errors import StoreError


@contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """Open a file to write, or stdout.

    Raises:
        StoreError: the file cannot be written.
    """
    if path is None:
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --output") from error
