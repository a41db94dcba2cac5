"""The steps of one rank, one after the other, in files; used on the writer's thread alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ..records import NOTE, Header, Note
from .arena import Chunk
from .host_bytes import HostBytes
from .shard_writer import HeaderBudget
from .step_files import BlobStart, Piece, StepEnd, StepFiles


class Steps:
    """Takes what is said of a rank's steps, in the order in which it was said."""

    def __init__(
        self,
        root: Path,
        rank: int,
        shard_bytes: int,
        release: Callable[[list[Chunk]], None],
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._root = root
        self._rank = rank
        self._shard_bytes = shard_bytes
        self._release = release
        self._on_step = on_step
        self._header: Header | None = None
        self._files: StepFiles | None = None
        self._late_records = 0
        self._header_budget = HeaderBudget()

    def begin(self, header: Header) -> None:
        """Begin a step; its files are made with its first record or blob."""
        self._header = header

    def records(self, batch: list[tuple[Any, ...]]) -> None:
        """Write records, and empty `batch`."""
        files = self._open()
        if files is None:
            self._late_records += len(batch)
        else:
            files.records(batch)

    def piece(self, piece: Piece) -> None:
        """Write a piece of a blob."""
        files = self._open()
        assert files is not None, "store refuses outside of a step"
        files.piece(piece)

    def write(self, blob: BlobStart, source: HostBytes) -> None:
        """Write a whole blob from where its bytes are."""
        files = self._open()
        assert files is not None, "store refuses outside of a step"
        files.write(blob, source)

    def flush(self) -> None:
        """Write what waits."""
        if self._files is not None:
            self._files.flush()

    def end(self, end: StepEnd) -> None:
        """Complete the step."""
        if self._files is not None:
            self._files.finish(end)
        self._files = self._header = None

    def interrupt(self, notes: list[Note]) -> None:
        """Close the files of a step that never ended."""
        if self._files is not None:
            self._files.records(list(notes))
            self._files.interrupt()
        self._files = self._header = None

    def fail(self, error: BaseException) -> StoreError:
        """Leave the files as they are after an error; return what to tell the user."""
        step = self._header.step if self._header else None
        if self._files is not None:
            self._files.abandon()
            self._files = None
        return _as_store_error(error, self._root, step, self._rank)

    def _open(self) -> StepFiles | None:
        """Return the files of the step that is open, made now if there are none yet."""
        header = self._header
        if self._files is None and header is not None:
            directory = self._root / f"step{header.step}" / f"rank{self._rank}"
            self._files = StepFiles(directory, header, self._shard_bytes, self._header_budget, self._release)
            if self._on_step is not None:
                self._on_step(header.step)
            if self._late_records:
                message = f"{self._late_records} records came after the step before had ended and were left out"
                self._files.records([Note(NOTE, "late_records", message, self._late_records)])
                self._late_records = 0
        return self._files


def _as_store_error(error: BaseException, root: Path, step: int | None, rank: int) -> StoreError:
    where = f"step {step} of rank {rank} in {root}"
    rest = "what was written before stays readable (`aten-dump recover` completes it)"
    if isinstance(error, OSError) and error.errno is not None:
        message = f"cannot write {where}: {error.strerror}; {rest}; free space or choose another path"
        result = StoreError(error.errno, message)
    else:
        result = StoreError(f"cannot write {where}: {error if isinstance(error, StoreError) else repr(error)}; {rest}")
    result.__cause__ = error
    return result
