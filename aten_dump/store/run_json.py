"""``run.json``: what ran, one per dump, written by rank 0."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import FormatError, MissingDataError, StoreError

RUN_FILE = "run.json"


def write_run(root: Path, info: dict[str, Any]) -> None:
    """Write `info` to ``run.json`` in `root`, whole or not at all (a temporary file, then a rename).

    Raises:
        StoreError: the file cannot be written.
    """
    path = Path(root) / RUN_FILE
    temporary = path.with_name(f".{RUN_FILE}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(info, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        message = f"cannot write {path}: {error.strerror}; choose a path on a disk that is writable and has room"
        raise StoreError(error.errno, message) from error


def read_run(root: Path) -> dict[str, Any]:
    """Read ``run.json`` of the dump at `root`.

    Raises:
        MissingDataError: there is none (interrupted at the start, or not a dump).
        FormatError: it is not a JSON object.
    """
    path = Path(root) / RUN_FILE
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{path} does not exist: is {root} the folder of a dump? It holds run.json and step*/rank*"
        raise MissingDataError(message) from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        message = f"{path} is not JSON ({error}); it was written whole, so the file was changed or damaged later"
        raise FormatError(message) from error
    if not isinstance(info, dict):
        raise FormatError(f"{path} holds a JSON {type(info).__name__}; an object is expected")
    return info
