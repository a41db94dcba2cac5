"""One export: from a dump to files that get their final name when they are whole."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..config import Selection
from ..dump import Dump, RankDump, open_dump
from ..errors import ConfigError, MissingDataError, StoreError
from ..extensions import object_at
from ..whole_files import refuse_to_replace_part_of, refuse_url
from .chosen_calls import ChosenCalls, Progress
from .targets import Target, targets


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, of how many calls, and what was not: sentences to counts."""

    path: Path
    calls: int
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True)
class Options:
    """What to export, and over what.

    Args:
        steps: steps to export, as in DumpConfig.steps.
        ranks: ranks to export, as in DumpConfig.ranks.
        filters: keywords of ``Calls.filter``.
        sources: folder whose files may be read for lines of code in ``graph``. A dump itself may name any file.
        overwrite: replace what is at the place to write to.
    """

    steps: str | int = "all"
    ranks: str | int = "all"
    filters: Mapping[str, str | None] = field(default_factory=dict)
    sources: str | os.PathLike[str] | None = None
    overwrite: bool = False


def export_dump(
    dump: str | os.PathLike[str] | Dump,
    to: str,
    out: str | os.PathLike[str],
    options: Options = Options(),
    progress: Progress | None = None,
) -> Exported:
    """Write a dump in another tool's format. One block of a tensor is in memory at a time.

    Args:
        dump: path of a dump, or an open one.
        to: a target, of `targets`.
        out: file or folder to write.
        options: what to export.
        progress: is called with how many calls are done, of how many.

    Raises:
        ConfigError: there is no such target, or something is at `out` already, or `out` is a URL.
        MissingDataError: no such step or rank, no call that the filters take, or a package is missing.
        StoreError: `out` cannot be written.
    """
    target = targets().get(to)
    if target is None:
        raise ConfigError(f"there is no export target {to!r}; allowed: {', '.join(targets())}")
    opened = dump if isinstance(dump, Dump) else open_dump(dump)
    kind = options.filters.get("kind")
    kinds = target.kinds if kind is None else (kind,)
    root = None if options.sources is None else Path(options.sources).resolve()
    chosen = ChosenCalls(_ranks(opened, options), kinds, options.filters, root, progress)
    write = object_at(target.write)
    refuse_url(out)
    final = Path(os.path.abspath(out))  # "." and ".." have no name to put anything beside
    _refuse_to_replace(final, opened.path, target, options.overwrite)
    with whole_or_nothing(final, target) as partial:
        write(chosen, partial)
        if not chosen.yielded and any(options.filters.values()):
            raise MissingDataError(f"no call of {opened.path} matches these filters, so nothing was written")
    return Exported(Path(out), chosen.yielded, chosen.left_out)


def _ranks(dump: Dump, options: Options) -> list[RankDump]:
    steps, ranks = (Selection.parse(name, getattr(options, name), "export's ") for name in ("steps", "ranks"))
    found = [rank for rank in dump.all_ranks() if rank.step in steps and rank.rank in ranks]
    if not found:
        raise MissingDataError(
            f"steps {options.steps!r} of ranks {options.ranks!r} are not in {dump.path}; recorded steps: "
            f"{', '.join(map(str, dump.steps)) or 'none'}; ranks: {', '.join(map(str, dump.ranks)) or 'none'}"
        )
    return found


def _refuse_to_replace(final: Path, dump: Path, target: Target, overwrite: bool) -> None:
    """See that nothing is at `final`, or what may be replaced: not the dump, whole or in part, nor a folder by a file.

    Raises:
        ConfigError: something is there that must stay.
    """
    if not os.path.lexists(final):
        return
    if not overwrite:
        raise ConfigError(f"{final} exists already; name another place to write to, or give --overwrite")
    refuse_to_replace_part_of([dump], final)
    if target.is_file and final.is_dir():
        raise ConfigError(f"{final} is a folder, and one file is to be written: name a file")
    if final.exists() and not final.is_file() and not final.is_dir():
        raise ConfigError(f"{final} is a device or a pipe, which an export does not write to: name a file or folder")


@contextlib.contextmanager
def whole_or_nothing(final: Path, target: Target) -> Iterator[Path]:
    """Give a temporary path beside `final`, which gets that name when the block ends, and is removed if it raises."""
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        if not target.is_file:
            partial.mkdir()
        yield partial
        _remove(final)
        os.replace(partial, final)
    except OSError as error:
        _remove(partial)
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot write {final}: {error.strerror or error}") from error
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
