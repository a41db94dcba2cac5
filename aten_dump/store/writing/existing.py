"""What already lies where a dump is to be written: refuse it, or remove what is ours and nothing else.

Who records a rank holds a lock on ``.rank<R>.lock`` in the folder of the dump from begin to end: what a live process
writes is never replaced. The file of a process that was killed stays, without lock.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...errors import StoreError
from ..rank_lock import RankLock
from ..regular_files import foreign_entries, let_go, numbered_folders, open_folder
from ..run_json import RUN_FILE

_LOCK: Final = ".rank{}.lock"
_LOCK_NAME: Final = re.compile(r"\.rank([0-9]{1,18})\.lock")
_OURS: Final = re.compile(r"index\.msgpack(\.partial)?|\.lock|shard-[0-9]{5,}\.safetensors(\.partial)?")


def prepare_root(root: Path, rank: int, recording: Sequence[int], overwrite: bool) -> RankLock:
    """Create `root`; see that no earlier dump of this rank is in it; lock the rank.

    The first rank that records also answers for those that do not, or that this run does not have, and for
    ``run.json``: what another run recorded of them is no part of this one.

    Args:
        root: the folder of the dump.
        rank: this one.
        recording: the ranks that record.
        overwrite: remove what is there.

    Returns:
        The lock of this rank, to be released when all is written.

    Raises:
        StoreError: `root` cannot be written, holds a dump and `overwrite` is False, or another process records there.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise StoreError(f"no permission to write in {root}; choose another path or change its permissions")
        lock = RankLock.take(root, name=_LOCK.format(rank))
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise _not_created(root, error) from error
    if lock is None:
        raise _recorded_now(root, rank)
    try:
        _clear(root, rank, recording, overwrite)
    except BaseException:
        lock.release()
        raise
    return lock


def _clear(root: Path, rank: int, recording: Sequence[int], overwrite: bool) -> None:
    """Refuse what is there, or remove it."""
    try:
        _refuse_links(root)
        ranks = _rank_folders(root)
        is_first = rank == min(recording, default=0)
        found = [path for number, path in ranks if number == rank or (is_first and number not in recording)]
        attempts = list(numbered_folders(root, "restart").values()) if is_first else []
    except StoreError:
        raise
    except OSError as error:
        raise _not_created(root, error) from error
    lying = [*found, *attempts]
    if lying and not overwrite:
        more = f" and {len(lying) - 1} more" if lying[1:] else ""
        raise StoreError(
            f"{root} already holds a dump: found {lying[0].relative_to(root)}{more}; "
            "pass overwrite=True to replace it, or choose another path"
        )
    if is_first:
        for folder in (root, *attempts):
            _refuse_live(folder, (rank, *recording) if folder is root else ())
    _remove(found, root / RUN_FILE if overwrite and is_first else None)
    for attempt in attempts:
        _remove_attempt(attempt)


def _not_created(root: Path, error: OSError) -> StoreError:
    message = f"cannot create the folder {root} of the dump: {error.strerror}; choose another path"
    return StoreError(error.errno, message)


def _recorded_now(root: Path, rank: int) -> StoreError:
    return StoreError(
        f"rank {rank} of {root} is being recorded now, by another DumpMode or process, and is not replaced; wait until "
        "that has ended, or choose another path"
    )


def _refuse_live(folder: Path, recording: Sequence[int]) -> None:
    """Refuse to remove what a process records now, of ranks that are not of this run.

    Args:
        folder: of a dump.
        recording: the ranks of this run, this one among them.
    """
    for name in os.listdir(folder):
        match = _LOCK_NAME.fullmatch(name)
        if match is None or int(match[1]) in recording:
            continue
        lock = RankLock.take(folder, name=name)
        if lock is None:
            raise _recorded_now(folder, int(match[1]))
        lock.release()


def _remove_attempt(folder: Path) -> None:
    """Remove what a restart of the program before wrote."""
    _refuse_links(folder)
    _remove([path for _, path in _rank_folders(folder)], folder / RUN_FILE)
    with contextlib.suppress(OSError):  # it holds files of others
        folder.rmdir()


def _rank_folders(root: Path) -> list[tuple[int, Path]]:
    found: list[tuple[int, Path]] = []
    for step in numbered_folders(root, "step").values():
        with contextlib.suppress(FileNotFoundError):  # another rank has just removed the last of it
            found += numbered_folders(step, "rank").items()
    return found


def _refuse_links(root: Path) -> None:
    """Refuse a dump in which the name of a step or rank is a link or a file: what would be written goes elsewhere."""
    found = [root / name for name in foreign_entries(root, "step")]
    for step in numbered_folders(root, "step").values():
        with contextlib.suppress(FileNotFoundError):
            found += [step / name for name in foreign_entries(step, "rank")]
    for path in found:
        if path.is_symlink() or not path.is_dir():
            raise StoreError(
                f"{path} is a link or a file where a folder of the dump belongs, so nothing was written or removed; "
                "move it or choose another path"
            )


def _remove(folders: list[Path], run_file: Path | None) -> None:
    """Remove rank folders and the step folders left empty; nothing at all if one holds files of others."""
    try:
        names = [_files_of(folder) for folder in folders]
        if run_file is not None:
            run_file.unlink(missing_ok=True)
        for folder, found in zip(folders, names, strict=True):
            _remove_files(folder, found)
            folder.rmdir()
            with contextlib.suppress(OSError):  # other ranks have folders in it, or one has just removed it
                folder.parent.rmdir()
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        message = f"cannot remove the old dump at {error.filename}: {error.strerror}; choose another path"
        raise StoreError(error.errno, message) from error


def _files_of(folder: Path) -> list[str]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _OURS.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                raise StoreError(
                    f"{folder / entry.name} is no file of a dump, so nothing was removed; move it or choose another "
                    "path"
                )
            found.append(entry.name)
    return found


def _remove_files(folder: Path, names: list[str]) -> None:
    """Remove files of a folder as it was opened: never those of another that takes its name meanwhile."""
    fd = open_folder(folder)
    try:
        for name in names:
            os.unlink(name, dir_fd=fd)
    finally:
        let_go(fd)
