"""Paths that lie in an object store: what a reader looks up through them is answered from a listing.

Theory of operation
    Who reads a dump joins names to paths and asks what is there. A `UrlPath` is a path to them; it prints as the URL.
    An object store has no folders, and each question is a request of some 50 ms: so a folder is listed once, with all
    that is below it, and further questions are answered from that. `open_dump` asks for a new listing; a task that
    opens one step and rank lists that alone.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any, Final

from ...errors import ConfigError
from ...whole_files import STORED_SCHEMES, url_scheme
from .object_store import Listed, ObjectStore, store_at

ALLOWED_URLS: Final = "a local path, s3://bucket/folder, gs://bucket/folder, az://container/folder"
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")
_BUCKET_PARTS: Final = 2  # of a path: scheme and bucket
_FRESH_SECONDS: Final = 2.0  # a command opens the same dump several times at its start
_MOST_LISTINGS: Final = 1024


class UrlPath(PosixPath):
    """A path in an object store; ``UrlPath("s3://bucket/run") / "step0"``. It is read only."""

    __slots__ = ()

    def __str__(self) -> str:
        return re.sub(":/+", "://", super().__str__(), count=1)

    @property
    def store(self) -> ObjectStore:
        return store_at("{}//{}".format(*self.parts))

    @property
    def key(self) -> str:
        return "/".join(self.parts[_BUCKET_PARTS:])

    def absolute(self) -> UrlPath:
        return self

    def resolve(self, strict: bool = False) -> UrlPath:
        return self

    def entries(self) -> dict[str, Listed | None]:
        """Return what a folder holds by name, None for a folder inside it; empty where there is no such folder."""
        return _listing_with(self).get(self.key, {})

    def listed(self) -> Listed | None:
        """Return an object; None where there is none."""
        if len(self.parts) <= _BUCKET_PARTS + 1:  # else the whole bucket would be listed
            return self.store.head(self.key)
        return self.parent.entries().get(self.name)

    def refresh(self) -> None:
        """List the folder anew, if the last listing is older than two seconds."""
        with _lock:
            known = _listings.get(str(self))
            if known is not None and time.monotonic() - known[0] >= _FRESH_SECONDS:
                del _listings[str(self)]

    def forget(self) -> None:
        """Forget all listings: something was written or removed."""
        with _lock:
            _listings.clear()

    def is_dir(self, **_: Any) -> bool:
        return bool(self.entries())

    def is_file(self, **_: Any) -> bool:
        return self.listed() is not None

    def is_symlink(self) -> bool:
        return False

    def exists(self, **_: Any) -> bool:
        return self.is_dir() or self.is_file()

    def iterdir(self) -> Iterator[UrlPath]:  # type: ignore[override]
        return (self / name for name in self.entries())

    def stat(self, **_: Any) -> os.stat_result:
        found = self.listed()
        if found is None:
            raise FileNotFoundError(f"{self} does not exist")
        changed = int(found.changed_unix)
        numbers = (stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, found.nbytes, changed, changed, changed)
        return os.stat_result(numbers, {"st_mtime": found.changed_unix, "st_mtime_ns": int(found.changed_unix * 1e9)})

    def lstat(self) -> os.stat_result:
        return self.stat()


_Tree = dict[str, dict[str, Listed | None]]  # of all folders below one, by key
_listings: Final[dict[str, tuple[float, _Tree]]] = {}  # by the folder that was listed: when, and what
_lock: Final = threading.Lock()


def place_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as it is, or the place in an object store that a URL names.

    Raises:
        ConfigError: it is a URL that names no folder of an object store.
    """
    if isinstance(path, UrlPath):
        return path
    if url_scheme(path) is None:
        return Path(path)
    match = _URL.fullmatch(os.fspath(path))
    assert match is not None, "every URL has a scheme and a rest"
    if match[1] not in STORED_SCHEMES or not match[2].strip("/"):
        raise ConfigError(
            f"{match[1]}://{match[2]} is a URL that names no folder of an object store; allowed: {ALLOWED_URLS} (a "
            "local folder of such a name: put ./ before it)"
        )
    return UrlPath(f"{match[1]}://{match[2]}")


def _listing_with(path: UrlPath) -> _Tree:
    """Return a listing that a folder is in, made now if there is none."""
    with _lock:
        for outer in (path, *path.parents):
            known = _listings.get(str(outer))
            if known is not None:
                return known[1]
    made = _listing_of(path)
    if not made[path.key]:  # what is not there yet may come
        return made
    with _lock:
        if len(_listings) >= _MOST_LISTINGS:
            del _listings[next(iter(_listings))]
        _listings[str(path)] = time.monotonic(), made
    return made


def _listing_of(path: UrlPath) -> _Tree:
    top = path.key
    tree: _Tree = {top: {}}
    for found in path.store.list(top):
        inside, _, name = found.key.rpartition("/")
        if not name or not found.key.startswith(f"{top}/" if top else ""):  # a marker of a folder, or a neighbor
            continue
        while inside not in tree:
            tree[inside] = {}
            inside = inside.rpartition("/")[0]
        tree[found.key.rpartition("/")[0]][name] = found
    for inside in list(tree):
        outer, _, name = inside.rpartition("/")
        if inside != top and outer in tree:
            tree[outer].setdefault(name, None)
    return tree
