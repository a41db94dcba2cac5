"""``run.json``: what ran, one per dump, written by the first recorded rank and kept current.

Theory of operation
    The file is a JSON object whose first member, on the second line, is the checksum of all lines after it: whoever
    reads it knows whether it is what was written. It is written to another name and renamed, so it is whole at any
    time. It lists the steps that its rank has begun and the ranks that record, which shows what of a dump was lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import xxhash

from ..errors import FormatError, MissingDataError, StoreError
from .objects.url_path import place_of
from .regular_files import open_inside
from .stored_files import open_stored

RUN_FILE: Final = "run.json"
_MOST_BYTES: Final = 64 << 20
_BEGIN: Final = re.compile(rb'{\n "checksum": "([0-9a-f]{16})",?\n')
_RANGES: Final = re.compile(r"\d{1,18}(-\d{1,18})?(\|\d{1,18}(-\d{1,18})?)*")


class RunFile:
    """The file of a run while it is recorded."""

    def __init__(self, root: Path, info: dict[str, Any]) -> None:
        """Take what the file says but the steps."""
        self._root = root
        self._info = info
        self._steps: list[list[int]] = []  # ranges of them, not each: a run has millions
        self._lock = threading.Lock()

    def add_steps(self, steps: Iterable[int]) -> None:
        """Record that the files of steps exist."""
        with self._lock:
            for step in steps:
                _add(self._steps, step)
        self.write()

    def write(self, **more: Any) -> None:
        """Write the file as it is now, with further members.

        Raises:
            StoreError: it cannot be written.
        """
        with self._lock:
            self._info |= {"steps": _text(self._steps), **more}
            write_run(self._root, self._info)


def ranges_of(numbers: Iterable[int]) -> str:
    """Return numbers as ``DumpConfig.steps`` has them: ``0-3|7``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        _add(found, number)
    return _text(found)


def _add(ranges: list[list[int]], number: int) -> None:
    """Add a number that is above those in the ranges, or is the last of them."""
    if ranges and ranges[-1][1] >= number - 1:
        ranges[-1][1] = number
    else:
        ranges.append([number, number])


def _text(ranges: list[list[int]]) -> str:
    return "|".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)


def read_ranges(text: object) -> list[tuple[int, int]]:
    """Return the ranges (low, high) of what `ranges_of` made, which go up; none where it is something else.

    A file may claim more numbers than fit in memory: never go through those of a range one by one.
    """
    if not isinstance(text, str) or not _RANGES.fullmatch(text):
        return []
    pairs = (part.partition("-") for part in text.split("|"))
    found = [(int(low), int(high or low)) for low, _, high in pairs]
    last = -1
    for low, high in found:
        if not last < low <= high:
            return []
        last = high
    return found


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges as ``DumpConfig.steps`` has them: ``0-3|7``."""
    return _text([list(pair) for pair in ranges])


def without(ranges: Iterable[tuple[int, int]], numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return what is left of the ranges without some numbers, which are in them: by pairs, however many they span."""
    left = []
    gone = sorted(set(numbers))
    for low, high in ranges:
        for number in gone[bisect_left(gone, low) : bisect_right(gone, high)]:
            if low < number:
                left.append((low, number - 1))
            low = number + 1
        if low <= high:
            left.append((low, high))
    return left


def write_run(root: Path, info: dict[str, Any]) -> None:
    """Write `info` to ``run.json`` in `root`, whole or not at all (a temporary file, then a rename).

    Raises:
        StoreError: the file cannot be written.
    """
    path = Path(root) / RUN_FILE
    temporary = path.with_name(f".{RUN_FILE}.{os.getpid()}")
    text = json.dumps(info, indent=1, default=repr)
    rest = text[2:].encode() + b"\n" if info else b"}\n"
    begin = f'{{\n "checksum": "{xxhash.xxh3_64_hexdigest(rest)}"{"," if info else ""}\n'.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # of a process that was killed
        with open(open_inside(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(begin + rest)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        message = f"cannot write {path}: {error.strerror}; choose a path on a disk that is writable and has room"
        raise StoreError(error.errno, message) from error


def read_run(root: Path) -> dict[str, Any]:
    """Read ``run.json`` of the dump at `root`; files of earlier versions have no checksum.

    Raises:
        MissingDataError: there is none (interrupted at the start, or not a dump).
        FormatError: it is not a JSON object, or was changed.
    """
    path = place_of(root) / RUN_FILE
    try:
        with contextlib.closing(open_stored(path)) as file:
            data = bytes(file.read(_MOST_BYTES + 1, 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{path} does not exist: is {root} the folder of a dump? It holds run.json and step*/rank*"
        raise MissingDataError(message) from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    begin = _BEGIN.match(data)
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{path} has more than {_MOST_BYTES} bytes, which no run needs")
    if begin and xxhash.xxh3_64_hexdigest(data[begin.end() :]).encode() != begin[1]:
        raise FormatError(f"{path} does not have the checksum recorded in it: it was changed after it was written")
    try:
        info = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"{path} is not JSON ({error}); it was written whole, so the file was changed or damaged later"
        raise FormatError(message) from error
    if not isinstance(info, dict):
        raise FormatError(f"{path} holds a JSON {type(info).__name__}; an object is expected")
    info.pop("checksum", None)
    return info
