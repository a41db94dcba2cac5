"""Where the spool of a URL is, and the marker that says in the object store which spool is not uploaded yet."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from ..objects.url_path import UrlPath

MARKER: Final = re.compile(r"spool-rank([0-9]{1,18})\.json")


def spool_folder(target: UrlPath, spool: str | os.PathLike[str] | None = None) -> Path:
    """Return the spool of a URL: below `spool`, or else below the folder for temporary files."""
    if spool is None:
        base = Path(tempfile.gettempdir(), f"aten_dump-spool-{os.getuid()}")
        base.mkdir(0o700, parents=True, exist_ok=True)
    else:
        base = Path(spool).absolute()
    return base.joinpath(target.parts[0].rstrip(":"), *target.parts[1:])


def spools_here(target: UrlPath, spool: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the spools of a URL on this machine: those that its markers name, and the one where it would be made."""
    named = [Path(one["folder"]) for one in markers(target).values() if is_here(one)] if spool is None else []
    return [folder for folder in dict.fromkeys([*named, spool_folder(target, spool)]) if folder.is_dir()]


def is_here(marker: dict[str, Any]) -> bool:
    """Return True if a marker names a folder of this machine."""
    return marker.get("host") == socket.gethostname() and isinstance(marker.get("folder"), str)


def put_marker(target: UrlPath, rank: int, folder: Path) -> None:
    """Mark in the object store that a rank has a spool; this also shows if it may write there."""
    found = {"rank": rank, "host": socket.gethostname(), "folder": str(folder), "process": os.getpid()}
    text = json.dumps({**found, "begun_unix_ns": time.time_ns()}, indent=1)
    target.store.put(f"{target.key}/spool-rank{rank}.json", text.encode())


def remove_marker(target: UrlPath, rank: int) -> None:
    """Remove the mark, as all of a rank's spool is uploaded."""
    target.store.delete([f"{target.key}/spool-rank{rank}.json"])


def unfinished_uploads(target: UrlPath) -> list[str]:
    """Return which ranks have not uploaded all that they recorded, in sentences."""
    return [
        f"rank {rank} of {target} has not uploaded everything: it records still, or was killed; the rest is in "
        f"{said.get('folder')} on {said.get('host')}: run `aten-dump recover {target}` there once it has ended"
        for rank, said in sorted(markers(target).items())
    ]


def markers(target: UrlPath) -> dict[int, dict[str, Any]]:
    """Return what the markers say, by rank."""
    found = {}
    for name in target.entries():
        match = MARKER.fullmatch(name)
        if match is None:
            continue
        try:
            said = json.loads(bytes(target.store.get((target / name).key)))
        except (ValueError, FileNotFoundError):  # removed just now
            continue
        if isinstance(said, dict):
            found[int(match[1])] = said
    return found
