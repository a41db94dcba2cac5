"""Dump and Step: the directories of a dump. Opening one reads run.json and directory names, no index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import AtenDumpError, FormatError, MissingDataError, StoreError
from ..store.objects.url_path import UrlPath, place_of
from ..store.regular_files import foreign_entries, numbered_folders
from ..store.run_json import RUN_FILE, read_ranges, read_run
from ..store.spool.places import unfinished_uploads
from ..store.stored_files import is_there
from ..store.writing.index_writer import INDEX_FILE
from .foreign.formats import foreign_layouts, foreign_ranks
from .rank import RankDump
from .shown.notebook_html import MOST_SUMMED_UP, dump_html, sizes
from .shown.step_ranks import named

_SHOWN = 20
_MOST_LISTED = 1 << 20


class Step:
    """One recorded step.

    Example:
        >>> open_dump("dump").step(0).ranks
        [0]
    """

    def __init__(self, dump: Dump, step: int, ranks: Mapping[int, RankDump]) -> None:
        self.dump = dump
        self.step = step
        self._ranks = dict(ranks)

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded this step."""
        return list(self._ranks)

    def rank(self, rank: int) -> RankDump:
        """Return what a rank recorded in this step.

        Raises:
            MissingDataError: it recorded nothing; the message names the ranks that did.
        """
        try:
            return self._ranks[rank]
        except KeyError:
            raise MissingDataError(
                f"rank {rank!r} is not in step {self.step} of {self.dump.path}; recorded ranks: "
                f"{_numbers(self._ranks)}. Was it selected by DumpConfig.ranks, and was its directory copied?"
            ) from None

    def __repr__(self) -> str:
        return f"<Step {self.step} of {self.dump.path}, ranks {_numbers(self._ranks)}>"


class Dump:
    """A dump directory.

    Example:
        >>> dump = open_dump("dump")
        >>> dump.steps, dump.step(0).rank(0).complete
        ([0, 1], True)
    """

    def __init__(
        self, path: Path, run: dict[str, Any], ranks: Mapping[int, Mapping[int, RankDump]], damage: str = ""
    ) -> None:
        """Take what is there; `damage` says why run.json could not be read."""
        self.path = path
        self.run = run  # what run.json says; {} where there is none
        self._damage = damage
        self._steps = {step: Step(self, step, dict(sorted(found.items()))) for step, found in sorted(ranks.items())}

    @property
    def problems(self) -> list[str]:
        """What is wrong with the folder, in sentences: a damaged run.json, steps and ranks of its that are gone."""
        found = [self._damage] if self._damage else []
        if isinstance(self.path, UrlPath):
            found += unfinished_uploads(self.path)
        for name in foreign_entries(self.path, "step"):
            found.append(f"{self.path / name} is no step of the dump: a link, a file, or a number written otherwise")
        for name in foreign_entries(self.path, "restart"):
            found.append(
                f"{self.path / name} is no attempt of the program: a link, a file, or a number written otherwise"
            )
        return [*found, *self._lost()]

    def _lost(self) -> Iterator[str]:
        """Yield the steps and ranks that run.json lists and that are not there; with a trigger, ranks may have none."""
        config = self.run.get("config")
        if isinstance(config, dict) and config.get("trigger"):
            return
        lost: dict[tuple[int, ...], list[int]] = {}  # steps, by the ranks that they lack
        expected = set(self.expected_ranks)
        for step in _within(self.run.get("steps")):
            there = self._steps[step].ranks if step in self._steps else []
            lost.setdefault(tuple(sorted(expected.difference(there))), []).append(step)
        for ranks, steps in lost.items():
            if ranks:
                verb, them = ("is", "it") if len(steps) == len(ranks) == 1 else ("are", "them")
                yield (
                    f"{named('step', steps)} of {named('rank', ranks)} {verb} not in {self.path}, though {RUN_FILE} "
                    f"lists {them}; did the program end there before that, or was a folder lost, or not copied?"
                )

    @property
    def attempts(self) -> dict[int, Dump]:
        """What restarts of the program wrote (torchrun's), by how often it had been restarted; this one left out."""
        found = numbered_folders(self.path, "restart") if self.path.is_dir() else {}
        return {restarts: open_dump(folder) for restarts, folder in found.items()}

    @property
    def steps(self) -> list[int]:
        """The recorded steps, in order."""
        return list(self._steps)

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded any step, in order."""
        return sorted({rank for step in self._steps.values() for rank in step.ranks})

    @property
    def expected_ranks(self) -> list[int]:
        """The ranks that were to record, as run.json says; none where it is lost."""
        return _within(self.run.get("ranks"))

    def step(self, step: int) -> Step:
        """Return a recorded step.

        Raises:
            MissingDataError: it was not recorded; the message names those that were.
        """
        try:
            return self._steps[step]
        except KeyError:
            raise MissingDataError(
                f"step {step!r} is not in {self.path}; recorded steps: {_numbers(self._steps)}. "
                f"Was it selected by DumpConfig.steps?{self._note_of_attempts()}"
            ) from None

    def _note_of_attempts(self) -> str:
        names = [dump.path.name for dump in self.attempts.values()]
        return f" Restarts of the program wrote {', '.join(names)}: open those." if names else ""

    def rank(self, step: int, rank: int) -> RankDump:
        """Return what a rank recorded in a step."""
        return self.step(step).rank(rank)

    def all_ranks(self) -> list[RankDump]:
        """Return every step and rank, by step, then rank."""
        return [step.rank(rank) for step in self._steps.values() for rank in step.ranks]

    def __repr__(self) -> str:
        return f"<Dump {self.path}, steps {_numbers(self._steps)}, ranks {_numbers(self.ranks)}>"

    def _repr_html_(self) -> str:
        ranks = self.all_ranks()
        rows = [[rank.step, rank.rank, *_sizes(rank)] for rank in ranks[:MOST_SUMMED_UP]]
        rows += [[rank.step, rank.rank, *[""] * 4] for rank in ranks[MOST_SUMMED_UP:]]
        return dump_html(f"{self.path}", self.run, rows, self.problems)


def _sizes(rank: RankDump) -> list[str]:
    try:
        return sizes(rank.summary())
    except AtenDumpError:  # a look at a dump does not end with one damaged file of it
        return ["damaged", "", "", ""]


def open_dump(path: str | os.PathLike[str], *, verify: bool = True) -> Dump:
    """Open a dump for reading. No accelerator is needed, and no index is read yet.

    Args:
        path: the directory or URL in DumpConfig.path, or a dump of msprobe or MindSpore.
        verify: compare the bytes of tensors with their checksums at the first read, which takes a tenth to a third more
            time; False returns damaged bytes as they are.

    Returns:
        A `Dump`, from which steps, ranks, calls and values are read when they are used.

    Raises:
        StoreError: no such directory exists, or it cannot be read.
        ConfigError: the URL is of no object store, or the extra ``remote`` is not installed.
        FormatError: it is not a dump.

    Example:
        >>> open_dump("dump")
        <Dump dump, steps 0, 1, ranks 0>
    """
    root = place_of(path)
    if isinstance(root, UrlPath):
        root.refresh()
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise StoreError(f"cannot open dump {root}: it {what}; give the directory that DumpConfig.path named")
    try:
        indexes = {
            step: {
                rank: RankDump(inner, step, rank, verify)
                for rank, inner in numbered_folders(outer, "rank").items()
                if _has_index(inner)
            }
            for step, outer in numbered_folders(root, "step").items()
        }
        indexes = {step: ranks for step, ranks in indexes.items() if ranks}
        is_named = bool(indexes) or is_there(root / RUN_FILE) or bool(numbered_folders(root, "restart"))
        if not is_named and not (isinstance(root, UrlPath) and unfinished_uploads(root)):
            return Dump(root, {}, _foreign(root))
    except OSError as error:
        raise StoreError(f"cannot read dump {root}: {error.strerror or error}") from error
    run, damage = _read_run(root)
    return Dump(root, run, indexes, damage)


def rank_at(path: str | os.PathLike[str], step: int, rank: int) -> RankDump:
    """Open one step and rank of a dump, and look at no other folder: of thousands of ranks each task opens its own.

    Raises:
        MissingDataError: it is not there; the message names what is.
        StoreError, FormatError: as `open_dump`.
    """
    directory = place_of(path) / f"step{step}" / f"rank{rank}"
    return RankDump(directory, step, rank) if _has_index(directory) else open_dump(path).rank(step, rank)


def run_at(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what run.json of a dump says; {} where there is none, or a damaged one."""
    return _read_run(place_of(path))[0]


def _foreign(root: Path) -> Mapping[int, Mapping[int, RankDump]]:
    found = foreign_ranks(root)
    if not found:
        raise FormatError(
            f"{root} is not a dump: it has neither {RUN_FILE} nor step*/rank*/{INDEX_FILE}, "
            f"nor what {foreign_layouts()} write; give the directory that holds step0, ..."
        )
    return found


def _read_run(root: Path) -> tuple[dict[str, Any], str]:
    """Return what run.json says, and why it could not be read: a damaged one costs only what it held."""
    try:
        return read_run(root), ""
    except MissingDataError:
        return {}, ""  # interrupted at the very start, or only some ranks were copied: the indexes are enough
    except (FormatError, StoreError) as error:
        return {}, str(error)


def _within(text: object) -> list[int]:
    """Return the numbers of ranges in run.json, as many as a run may have."""
    ranges = read_ranges(text)
    count = sum(max(0, high - low + 1) for low, high in ranges)
    return [n for low, high in ranges for n in range(low, high + 1)] if count <= _MOST_LISTED else []


def _has_index(directory: Path) -> bool:
    """Return True if a rank's folder has something of that name; what it is says who opens it."""
    return is_there(directory / INDEX_FILE)


def _numbers(numbers: Mapping[int, Any] | list[int]) -> str:
    """Return numbers as text, shortened in the middle of a long list."""
    texts = [str(number) for number in numbers]
    if len(texts) > _SHOWN:
        texts = [*texts[: _SHOWN // 2], "...", *texts[-_SHOWN // 2 :]]
    return ", ".join(texts) or "none"
