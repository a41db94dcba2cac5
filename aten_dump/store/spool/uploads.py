"""Uploads what a rank writes to its spool, on a thread of its own.

Theory of operation
    The rank writes an ordinary dump into the spool. A shard is uploaded and removed once it is finished, the index of
    a step when all its shards are there, so nobody finds a step of which something is missing; run.json comes last.
    What fails is tried again with growing pauses, for as long as the program runs.

    The program never waits for an upload while the spool has room. Beyond `most_bytes` it waits as for a slow disk;
    where uploads fail all the while, that is an error as on a full disk, and `DumpConfig.on_error` says what becomes of
    it. What is in the spool stays there, and `joining` uploads it later.

    The lock ``.upload<R>.lock`` says that the thread lives; the marker in the object store says where the spool is, and
    goes when all of it is uploaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import StoreError
from ..objects.object_store import ObjectStoreError
from ..objects.url_path import UrlPath
from ..rank_lock import RankLock
from ..run_json import RUN_FILE
from ..threads.bell import Bell
from ..threads.side_by_side import side_by_side
from ..writing.index_writer import INDEX_FILE
from .places import put_marker, remove_marker

LOCK: Final = ".upload{}.lock"
PATIENCE_SECONDS: Final = 60.0  # of failing, while the spool is full or the program ends
_AT_ONCE: Final = 8  # uploads
_LOOK_SECONDS: Final = 0.05
_LAST_SECONDS: Final = 1.0
_PAUSES: Final = (0.5, 30.0)  # seconds between tries: the first, the longest
_OURS: Final = re.compile(
    r"(?:restart[0-9]+/)?(?:step[0-9]+/rank(?P<rank>[0-9]+)/(?:index\.msgpack|shard-[0-9]{5,}\.safetensors)"
    r"|spool-rank(?P<marked>[0-9]+)\.json|run\.json)"
)


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """What is uploaded, and where to.

    Args:
        folder: the spool.
        target: the dump's place in the object store.
        most_bytes: that may lie in the spool.
        growing_bytes: how many of those files may have that are not finished.
    """

    folder: Path
    target: UrlPath
    most_bytes: int
    growing_bytes: int


class _Waiting:
    """A file as it was when it was to be uploaded."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class _Outage:
    """For how long uploads have failed, and when to try again."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # of the last round
        self._since = 0.0
        self._rounds = 0
        self._random = random.Random()  # of its own, never the program's

    def note(self, error: BaseException | None) -> bool:
        """Take what a round ended with; returns True where uploads have just begun to fail."""
        is_new = error is not None and self.error is None
        if is_new:
            self._since, self._rounds = time.monotonic(), 0
        self.error = error
        self._rounds += 1
        return is_new

    @property
    def is_long(self) -> bool:
        """True if it has lasted for PATIENCE_SECONDS, or access is refused: waiting no longer helps."""
        error = self.error
        is_final = isinstance(error, ObjectStoreError) and error.is_final
        return error is not None and (is_final or time.monotonic() - self._since > PATIENCE_SECONDS)

    def pause_seconds(self) -> float:
        """Return how long to wait before the next try."""
        first, longest = _PAUSES
        return min(longest, first * 2.0 ** min(self._rounds, 16)) * self._random.uniform(0.5, 1.0)


class Uploads:
    """The uploads of one rank."""

    def __init__(self, settings: SpoolSettings, rank: int) -> None:
        self._settings = settings
        self._rank = rank
        self._pid = os.getpid()
        self._waiting: dict[Path, _Waiting] = {}  # in the order in which they were finished
        self._lock = threading.Lock()  # of the one above
        self._bell = Bell()
        self._room_bell = Bell()
        self._outage = _Outage()
        self._round_errors: list[BaseException] = []
        self._run_file: Path | None = None  # where this rank writes it
        self._is_ending = False
        self._has_given_up = False
        self._thread = threading.Thread(target=self._run, name=f"aten_dump-upload-{rank}", daemon=True)

    def begin(self, recording: Sequence[int], overwrite: bool) -> None:
        """See that nothing of this rank is there, put the marker, and start the thread.

        Raises:
            StoreError: there is a dump already, or the store refuses.
            ConfigError: obstore is not installed.
        """
        settings = self._settings
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                error.errno, f"cannot make the spool {settings.folder}: {error.strerror}; set DumpConfig.spool"
            ) from error
        lock = RankLock.take(settings.folder, name=LOCK.format(self._rank))  # before the marker that names the folder
        if lock is None:
            raise StoreError(f"the spool {settings.folder} is being uploaded by another process; wait for its end")
        try:
            _clear(settings.target, self._rank, recording, overwrite)
            put_marker(settings.target, self._rank, settings.folder)
        except BaseException:
            lock.release()
            raise
        self._file_lock = lock
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of finished files that are not uploaded yet."""
        with self._lock:
            return sum(one.nbytes for one in self._waiting.values())

    def add(self, path: Path) -> None:
        """Upload a finished file: a shard, the index of a step, or run.json as it is by then."""
        waiting = _Waiting(path.stat().st_size)
        if _is_run(path):
            self._run_file = path
        with self._lock:
            self._waiting.pop(path, None)
            self._waiting[path] = waiting
        self._bell.ring()

    def room(self, nbytes: int) -> None:
        """Wait until so many bytes may come into the spool.

        Raises:
            StoreError: it is full, and uploads fail.
        """
        settings = self._settings
        while (used := self.waiting_bytes) and used + nbytes + settings.growing_bytes > settings.most_bytes:
            if self._outage.is_long:
                raise StoreError(
                    errno.ENOSPC,
                    f"the spool {settings.folder} is full: {used:,} bytes wait to be uploaded, "
                    f"DumpConfig.spool_bytes allows {settings.most_bytes:,} with what is being written, and uploads "
                    f"fail: {self._outage.error}; `aten-dump recover {settings.target}` uploads them later",
                )
            self._room_bell.wait(_LOOK_SECONDS)

    def close(self, is_whole: bool) -> None:
        """Wait until all is uploaded, as long as uploads do not fail; then remove the marker, if all `is_whole`.

        Raises:
            StoreError: something is left in the spool.
        """
        if os.getpid() != self._pid or not self._thread.ident:
            return
        self._is_ending = True
        self._bell.ring()
        while self._thread.is_alive() and not self._outage.is_long:
            self._thread.join(_LOOK_SECONDS)
        self._has_given_up = True
        self._thread.join(_LAST_SECONDS)  # its lock goes with it
        target = self._settings.target
        target.forget()
        if self._waiting or not is_whole:
            why = self._outage.error or "the recording failed"
            text = (
                f"{len(self._waiting)} files are not uploaded to {target} ({why}); "
                f"they stay in {self._settings.folder} on this machine: `aten-dump recover {target}` uploads them"
            )
            if is_whole:
                raise StoreError(text)
            warnings.warn(f"aten_dump: {text}", stacklevel=3)  # the error before it is raised, or was
            return
        with contextlib.suppress(StoreError):  # a reader is warned of it, and `recover` removes it
            remove_marker(target, self._rank)
        if self._run_file is not None:  # else it is another rank's, which may be writing it
            self._run_file.unlink(missing_ok=True)

    # From here on: the thread's own.

    def _run(self) -> None:
        try:
            self._upload_all()
        finally:
            self._file_lock.release()

    def _upload_all(self) -> None:
        while not self._has_given_up:
            ending = self._is_ending
            with self._lock:
                batch = list(self._waiting.items())
            if batch:
                self._round(batch)
            elif ending:
                return
            if self._outage.error is not None:
                self._pause()
            elif not batch:
                self._bell.wait(1.0)

    def _pause(self) -> None:
        seconds = self._outage.pause_seconds()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not (self._is_ending and left < seconds - _PAUSES[0]):
            if self._has_given_up:
                return
            time.sleep(min(left, 0.25))

    def _round(self, batch: list[tuple[Path, _Waiting]]) -> None:
        """Upload what waits: shards, then indexes of steps whose shards are all there, then run.json."""
        errors = self._round_errors = []
        for is_next in (_is_shard, _is_index, _is_run):
            files = [one for one in batch if is_next(one[0]) and not self._lacks_shards(one[0])]
            for start in range(0, len(files), _AT_ONCE):
                side_by_side([self._upload_of(*one) for one in files[start : start + _AT_ONCE]])
        error = errors[0] if errors else None
        if self._outage.note(error):
            self._say_that_it_fails(error)

    def _lacks_shards(self, path: Path) -> bool:
        with self._lock:
            return _is_index(path) and any(one.parent == path.parent and _is_shard(one) for one in self._waiting)

    def _upload_of(self, path: Path, waiting: _Waiting) -> Callable[[], None]:
        def upload() -> None:
            try:
                upload_file(path, self._settings.folder, self._settings.target)
            except Exception as error:  # noqa: BLE001 - reported, and tried again
                self._round_errors.append(error)
                return
            with self._lock:
                if self._waiting.get(path) is waiting:  # else it has changed meanwhile
                    del self._waiting[path]
            if not _is_run(path):
                remove_uploaded(path)
            self._room_bell.ring()

        return upload

    def _say_that_it_fails(self, error: BaseException | None) -> None:
        with contextlib.suppress(Warning):  # which a filter may make an error: there is nobody here to take it
            warnings.warn(
                f"aten_dump: uploads fail ({error}); they are tried again, and the program goes on: "
                f"{self.waiting_bytes:,} bytes of the spool {self._settings.folder} are in use",
                stacklevel=1,
            )


def upload_file(path: Path, folder: Path, target: UrlPath) -> None:
    """Upload a file of a spool to its place."""
    key = target.joinpath(*path.relative_to(folder).parts).key
    target.store.put(key, path if _is_shard(path) else path.read_bytes())


def remove_uploaded(path: Path) -> None:
    """Remove an uploaded file from the spool, with its folders if it was the last of them."""
    path.unlink(missing_ok=True)
    if _is_index(path):
        for outer in (path.parent, path.parent.parent):
            with contextlib.suppress(OSError):  # another rank has files in it
                outer.rmdir()


def _is_shard(path: Path) -> bool:
    return path.name.startswith("shard-")


def _is_index(path: Path) -> bool:
    return path.name == INDEX_FILE


def _is_run(path: Path) -> bool:
    return path.name == RUN_FILE


def _clear(target: UrlPath, rank: int, recording: Sequence[int], overwrite: bool) -> None:
    """Refuse what is in the object store of this rank, or remove it; see `existing.prepare_root`."""
    is_first = rank == min(recording, default=0)
    found = []
    for listed in target.store.list(target.key):
        name = listed.key[len(target.key) + 1 :]
        match = _OURS.fullmatch(name)
        if match is None:
            continue
        of_rank = match["rank"] or match["marked"]
        is_old = name.startswith("restart") or of_rank is None or int(of_rank) not in recording
        if (of_rank is not None and int(of_rank) == rank) or (is_first and is_old):
            if not overwrite and of_rank is not None:
                raise StoreError(
                    f"{target} already holds a dump: found {name}; pass overwrite=True to replace it, choose another "
                    f"path, or run `aten-dump recover {target}` if a run was killed"
                )
            found.append(listed.key)
    if overwrite:
        found.sort(key=lambda key: not key.endswith(INDEX_FILE))  # without its index nobody reads half a step
        target.store.delete(found)
        target.forget()
