"""What already lies where a dump is to be written: refuse it, or remove what is ours and nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ...errors import StoreError
from ..run_json import RUN_FILE

_STEP: Final = re.compile(r"step\d+")
_RANK: Final = re.compile(r"rank(\d+)")
_OURS: Final = re.compile(r"index\.msgpack|shard-\d{5,}\.safetensors(\.partial)?")


def prepare_root(root: Path, rank: int, world_size: int, overwrite: bool) -> None:
    """Create `root`; see that no earlier dump of this rank is in it.

    Rank 0 also answers for ranks that this run does not have (>= world_size) and for ``run.json``.

    Raises:
        StoreError: `root` cannot be written, or holds a dump and `overwrite` is False.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        found = [path for path in _rank_folders(root) if _concerns(path, rank, world_size)]
    except OSError as error:
        message = f"cannot create the folder {root} of the dump: {error.strerror}; choose another path"
        raise StoreError(error.errno, message) from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise StoreError(f"no permission to write in {root}; choose another path or change its permissions")
    if found and not overwrite:
        more = f" and {len(found) - 1} more" if found[1:] else ""
        raise StoreError(
            f"{root} already holds a dump: found {found[0].relative_to(root)}{more}; "
            "pass overwrite=True to replace it, or choose another path"
        )
    _remove(found)
    if overwrite and rank == 0:
        (root / RUN_FILE).unlink(missing_ok=True)


def _rank_folders(root: Path) -> list[Path]:
    steps = sorted(path for path in root.iterdir() if _STEP.fullmatch(path.name) and path.is_dir())
    return [path for step in steps for path in sorted(step.iterdir()) if _RANK.fullmatch(path.name)]


def _concerns(path: Path, rank: int, world_size: int) -> bool:
    match = _RANK.fullmatch(path.name)
    assert match is not None, "only rank folders are listed"
    number = int(match[1])
    return number == rank or (rank == 0 and number >= world_size)


def _remove(folders: list[Path]) -> None:
    """Remove rank folders and the step folders left empty; nothing at all if one holds files of others."""
    try:
        files = [list(folder.iterdir()) for folder in folders]
        for file in (file for group in files for file in group):
            if not _OURS.fullmatch(file.name) or file.is_dir():
                raise StoreError(f"{file} is no file of a dump, so nothing was removed; move it or choose another path")
        for folder, group in zip(folders, files, strict=True):
            for file in group:
                file.unlink()
            folder.rmdir()
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()
    except StoreError:
        raise
    except OSError as error:
        message = f"cannot remove the old dump at {error.filename}: {error.strerror}; choose another path"
        raise StoreError(error.errno, message) from error
