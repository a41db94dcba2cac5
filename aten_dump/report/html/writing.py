"""Writes a report to a file, all of it or nothing."""

from __future__ import annotations

import os

from ...errors import StoreError
from ...whole_files import refuse_to_replace_part_of, replaced_when_whole
from .document import document
from .payload.sections import Subject, report_sections


def write_report(subject: Subject, path: str | os.PathLike[str]) -> int:
    """Write a report and return its bytes.

    Args:
        subject: what it is about.
        path: the HTML file; see `replaced_when_whole`.

    Raises:
        ConfigError: the file is part of a dump.
        StoreError: it cannot be written.
    """
    refuse_to_replace_part_of([dump.path for _, dump in subject.sides()], path)
    nbytes = 0
    try:
        with replaced_when_whole(path) as part, open(part, "wb") as file:
            for text in document(report_sections(subject)):
                nbytes += file.write(text.encode())
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}; name another --output") from error
    return nbytes
