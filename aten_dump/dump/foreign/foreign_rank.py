"""A step and rank that another tool recorded, as a RankDump."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import AtenDumpError, FormatError, MissingDataError
from ...store import records
from ...torch_names import DTYPES
from ..index.source import Source
from ..index.summary import Summary
from ..index.tables import Tables
from ..rank import RankDump
from ..shown.command_lines import command_line
from .made_index import MadeIndex
from .tensor_files import format_errors

Read = Callable[[Path, int, int, int], MadeIndex]  # directory, step, rank, world size


class ForeignSource(Source):
    """Records that are made when first asked for, and tensors out of files of other formats."""

    def __init__(self, directory: Path, make: Callable[[], MadeIndex]) -> None:
        super().__init__(directory)
        self._make = make
        self._made: MadeIndex | None = None
        self._last: tuple[int, NDArray[np.uint8]] | None = None  # a file is read once for all its pieces

    @property
    def made(self) -> MadeIndex:
        """What was read of the other tool's tables.

        Raises:
            FormatError: they are not what that tool writes.
        """
        if self._made is None:
            with format_errors(self.directory):
                self._made = self._make()
        return self._made

    def tables(self, where: str) -> Tables:
        """Make the records."""
        with format_errors(self.directory):
            return Tables(self.made.finish(), where)

    def changed_tables(self, where: str, changed: Iterable[tuple[Any, ...]], kinds: Iterable[int]) -> Tables:
        """Refuse: ranks are put together by facts that other tools do not record."""
        raise MissingDataError(f"ranks of {where} cannot be put together: it was recorded by another tool")

    def read(self, tables: Tables, blob: records.Blob, start: int, stop: int) -> NDArray[np.uint8]:
        """Read bytes of a tensor's file."""
        if self._last is None or self._last[0] != blob.id:
            self._last = blob.id, self._bytes(tables, blob)
        return np.array(self._last[1][start:stop], np.uint8)

    def _bytes(self, tables: Tables, blob: records.Blob) -> NDArray[np.uint8]:
        value = tables.values[blob.id]
        tensor = self.made.loads[blob.id]()
        dtype = DTYPES[tables.text(value.dtype)]
        if list(tensor.shape) != list(value.shape):
            raise FormatError(
                f"a tensor's file in {self.directory} holds shape {list(tensor.shape)}; "
                f"its table says {list(value.shape)}: the files are of different runs"
            )
        with format_errors(self.directory):
            raw = tensor.detach().to(dtype).resolve_conj().resolve_neg().contiguous().reshape(-1)
            found: NDArray[np.uint8] = raw.view(torch.uint8).numpy() if raw.numel() else np.empty(0, np.uint8)
        return found

    def lost_blobs(self, tables: Tables) -> frozenset[int]:
        """Return none: a file that is not there has no record either."""
        return frozenset()


def check_files(rank: ForeignRank) -> list[str]:
    """Read the tables and every tensor of a step and rank; return the problems found, each a sentence.

    Other tools keep no checksums: what can be seen is that a file can be read and holds what its table says.
    """
    problems = []
    try:
        tables = rank.tables
    except AtenDumpError as error:
        return [str(error)]
    for blob in tables.blobs.records():
        try:
            rank.source.read(tables, blob, 0, 0)
        except (AtenDumpError, OSError) as error:
            problems.append(str(error))
    return [*problems, *_absent(rank)]


def _absent(rank: ForeignRank) -> Iterator[str]:
    assert isinstance(rank.source, ForeignSource)
    names = rank.source.made.absent
    if names:
        some = ", ".join(f"{name!r:.80}" for name in names[:3]) + (", ..." if len(names) > 3 else "")
        yield f"tensor files that the table of {rank.directory} names are not there, {len(names)} in all: {some}"


class ForeignRank(RankDump):
    """What another tool recorded of one step and rank."""

    def __init__(self, read: Read, directory: Path, step: int, rank: int, world_size: int) -> None:
        super().__init__(directory, step, rank)
        self._read = read
        self._world_size = world_size
        self.source = ForeignSource(directory, lambda: read(directory, step, rank, world_size))

    @property
    def where(self) -> str:
        """Path, step and rank, as errors name them."""
        return f"{self.directory} (step {self.step}, rank {self.rank})"

    def command(self, name: str, *arguments: str) -> str:
        """Return a command to paste, but for the dump: how deep in it a folder lies differs from tool to tool."""
        return command_line(name, "DUMP", *arguments, step=self.step, rank=self.rank)

    def anew(self, like: Tables | None = None) -> ForeignRank:
        """Return it as it was when opened."""
        return ForeignRank(self._read, self.directory, self.step, self.rank, self._world_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignRank, (self._read, self.directory, self.step, self.rank, self._world_size)

    @property
    def shard_bytes(self) -> int:
        """The bytes of the tensors it has read from."""
        assert isinstance(self.source, ForeignSource)
        return self.source.made.blob_bytes

    def summary(self) -> Summary:
        """Return sizes, and a header and commit that stand for those of an index."""
        assert isinstance(self.source, ForeignSource)
        made = self.source.made
        return Summary(self.tables.header, self.tables.commit, 0, self.shard_bytes, len(made.loads))
