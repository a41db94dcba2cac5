"""Files that a user names to be written: whole, or as they were, and on this machine.

In: a path, and the dumps that are read; from this package only errors.
Out: where to write what is to have such a name; whether a name is the URL of another place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .errors import ConfigError

URLS_ARE_NOT_WRITTEN: Final = (
    "only dumps are recorded to and read from URLs, so name a local path and copy it (a local folder of such a name: "
    "put ./ before it)"
)
STORED_SCHEMES: Final = ("s3", "gs", "az", "abfs", "abfss")  # of object storage, where a dump may lie
# A scheme of two letters or more (one is a drive of Windows) and a slash: of "s3://a", a Path makes "s3:/a".
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def url_scheme(path: str | os.PathLike[str]) -> str | None:
    """Return the scheme of what is a URL and no path, as ``s3``; None for a path."""
    match = _URL.match(os.fspath(path))
    return match[1] if match else None


def refuse_url(path: str | os.PathLike[str]) -> None:
    """Refuse a URL.

    Raises:
        ConfigError: `path` is one.
    """
    if url_scheme(path) is not None:
        raise ConfigError(f"{os.fspath(path)} is a URL: {URLS_ARE_NOT_WRITTEN}")


def refuse_to_replace_part_of(dumps: Iterable[Path], path: str | os.PathLike[str]) -> None:
    """See that a file or folder to be written is not a dump, whole or in part, and does not hold one.

    Args:
        dumps: what is read to write it. Of these nothing at all is replaced; of any other dump, no file that the
            recorder wrote.
        path: where it is to be written. A new file beside those of a dump is none of it.

    Raises:
        ConfigError: it would replace something of a dump.
    """
    if not os.path.lexists(path):
        return
    place = Path(path).resolve()
    if _is_recorded(place):
        raise ConfigError(f"{path} is a dump, or a file of one: name a place outside the dump")
    for dump in dumps:
        source = dump.resolve()
        if place.is_relative_to(source) or source.is_relative_to(place):
            raise ConfigError(f"{path} is the dump {dump}, holds it or lies in it: name a place outside the dump")


def _is_recorded(place: Path) -> bool:
    """Return True for a dump, a step or rank of one, its run.json, and each file beside an index."""
    if place.is_dir():
        layouts = ("index.msgpack", "rank*/index.msgpack", "step*/rank*/index.msgpack")
        return any(next(place.glob(layout), None) for layout in layouts)
    beside = "step*/rank*/index.msgpack" if place.name == "run.json" else "index.msgpack"
    return next(place.parent.glob(beside), None) is not None


@contextmanager
def replaced_when_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to, which takes the place of `path` when the block ends, and is removed if it raises.

    A link stays one, and what it leads to is replaced. A device or a pipe is written to as it is: replaced,
    ``/dev/null`` would be a file for every process of the machine.
    """
    refuse_url(path)
    named = Path(path)
    if named.exists() and not named.is_file() and not named.is_dir():
        yield named
        return
    final = Path(os.path.realpath(named))
    temporary = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)
