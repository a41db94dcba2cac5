"""Joins what was uploaded of a killed run with what its spool still holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import AtenDumpError, StoreError
from ..objects.url_path import UrlPath
from ..rank_lock import RankLock
from ..recovery import RecoveryReport, recover
from ..regular_files import numbered_folders
from ..run_json import RUN_FILE
from ..writing.index_writer import INDEX_FILE
from .places import is_here, markers, remove_marker
from .uploads import LOCK, remove_uploaded, upload_file

_SHARD: Final = re.compile(r"shard-([0-9]{5,18})\.safetensors")


@dataclass(frozen=True, slots=True)
class Joined:
    """What became of one step and rank of a spool: a report, or why it stays there."""

    step: int
    rank: int
    report: RecoveryReport | None
    error: AtenDumpError | None = None


def join_spool(folder: Path, target: UrlPath) -> Iterator[Joined]:
    """Complete what a spool holds and upload it; what is uploaded is removed from the spool. It can be run again.

    Raises:
        StoreError: the store refuses, or the run still uploads.
    """
    ranks: set[int] = set()
    for step, outer in numbered_folders(folder, "step").items():
        for rank, inner in numbered_folders(outer, "rank").items():
            ranks.add(rank)
            with _locked(folder, rank):
                yield _join(inner, folder, target, (step, rank))
        with suppress(OSError):  # one that holds nothing was made just before a kill
            outer.rmdir()
    for inner in numbered_folders(folder, "restart").values():
        yield from join_spool(inner, target / inner.name)
    if (folder / RUN_FILE).is_file():
        upload_file(folder / RUN_FILE, folder, target)
    target.forget()
    for rank, said in markers(target).items():
        is_of_this = is_here(said) and said["folder"] == str(folder)
        if (is_of_this or rank in ranks) and not any(folder.glob(f"step*/rank{rank}/{INDEX_FILE}")):
            with _locked(folder, rank):
                remove_marker(target, rank)
    if not any(folder.glob("step*")):
        (folder / RUN_FILE).unlink(missing_ok=True)
    target.forget()


class _locked:
    """Keep a run from uploading the same meanwhile."""

    def __init__(self, folder: Path, rank: int) -> None:
        lock = RankLock.take(folder, name=LOCK.format(rank))
        if lock is None:
            raise StoreError(f"rank {rank} of {folder} is being recorded and uploaded now; wait until that has ended")
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _join(directory: Path, folder: Path, target: UrlPath, place: tuple[int, int]) -> Joined:
    there = target.joinpath(*directory.relative_to(folder).parts)
    if not (directory / INDEX_FILE).is_file():  # killed before anything was journaled: nothing says what is in shards
        for path in directory.iterdir():
            path.unlink()
        remove_uploaded(directory / INDEX_FILE)
        return Joined(*place, RecoveryReport(directory, False, True))
    uploaded = {
        int(match[1]): listed.nbytes
        for name, listed in there.entries().items()
        if listed is not None and (match := _SHARD.fullmatch(name))
    }
    try:
        report = recover(directory, uploaded)
    except AtenDumpError as error:
        return Joined(*place, None, error)
    for path in sorted(directory.glob("shard-*.safetensors")):
        upload_file(path, folder, target)
        remove_uploaded(path)
    index = directory / INDEX_FILE
    if report.committed:
        upload_file(index, folder, target)
    for path in directory.iterdir():
        if path != index:
            path.unlink()
    remove_uploaded(index)
    return Joined(*place, report)
