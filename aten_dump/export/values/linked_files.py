"""One file for each tensor of a call, under names that a file system takes.

A value that several calls read is written once: its other files are hard links to the first, where the disk has links.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...dump import Value
from ...plain_text import CsvRows

_LONGEST: Final = 255  # bytes of a file's name, on all usual file systems
MAPPING_FILE: Final = "mapping.csv"


class TensorFiles:
    """The tensors of one step and rank in one folder; `save` writes one of them."""

    def __init__(self, folder: Path, suffix: str, save: Callable[[Value, Path], None]) -> None:
        self.folder = folder
        self._suffix = suffix
        self._save = save
        self._first: dict[int, Path] = {}  # by value id
        self._names: dict[str, str] = {}  # what each file is named for
        self._renamed: list[tuple[str, str]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, value: Value) -> str:
        """Write a value under a name, and return the name of the file."""
        path = self.folder / self._file_name(name)
        first = self._first.setdefault(value.id, path)
        if first is path or not _linked(first, path):
            self._save(value, path)
        return path.name

    def _file_name(self, name: str) -> str:
        full = one_name(name) + self._suffix
        if len(full.encode()) <= _LONGEST and self._names.setdefault(full, name) == name:
            return full
        short = hashlib.sha256((name + self._suffix).encode()).hexdigest()[:32] + self._suffix
        self._renamed.append((short, name + self._suffix))
        return short

    def close(self) -> None:
        """Write which names were too long for a file, or those of another file already."""
        if self._renamed:
            with open(self.folder / MAPPING_FILE, "w", encoding="utf-8", newline="") as file:
                rows = CsvRows(file)
                for renamed in self._renamed:
                    rows.write(renamed)


def one_name(text: str) -> str:
    """Return a name that is one level of a path, of files or of HDF5 groups."""
    return without_nul(text).replace("/", "_")


def without_nul(text: str) -> str:
    """Return a text that names of files and HDF5 may hold."""
    return text.replace("\0", "_")


def _linked(first: Path, path: Path) -> bool:
    try:
        os.link(first, path)
    except OSError:  # no hard links here, or too many of them
        return False
    return True
