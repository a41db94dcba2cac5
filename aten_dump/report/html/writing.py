"""Writes a report to a file, all of it or nothing."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import StoreError
from .document import document
from .payload.sections import Subject, report_sections


def write_report(subject: Subject, path: str | os.PathLike[str]) -> int:
    """Write a report and return its bytes.

    Args:
        subject: what it is about.
        path: the HTML file; one that is there is replaced when the new one is whole.

    Raises:
        StoreError: the file cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.writelines(document(report_sections(subject)))
        os.replace(part, target)
        return target.stat().st_size
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {target}: {error.strerror}; name another --output") from error
    finally:
        part.unlink(missing_ok=True)
