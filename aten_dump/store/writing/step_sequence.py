"""The steps of one rank, one after the other, in files; used on the writer's thread alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...errors import StoreError
from ..records import FRAME, MODE, NOTE, OP, STACK, TEXT, Header, Note
from .arena import Chunk
from .existing import prepare_root
from .packed_records import kind_of, packed
from .settings import WriterSettings
from .shard_writer import FreeSpace, HeaderBudget
from .step_files import HandedOn, Piece, StepEnd, StepFiles

TELL_SECONDS: Final = 0.25
RELUCTANT_SECONDS: Final = 0.25
_TABLES: Final = frozenset((TEXT, OP, FRAME, STACK, MODE))  # they say nothing by themselves


class Steps:
    """Takes what is said of a rank's steps, in the order in which it was said."""

    def __init__(self, root: Path, rank: int, settings: WriterSettings, release: Callable[[list[Chunk]], None]) -> None:
        """Prepare the folder, and lock the rank in it.

        Args:
            root: folder of the dump; created if missing.
            rank: whose steps.
            settings: how they are written.
            release: is given chunks of the arena when they are written.

        Raises:
            StoreError: the folder holds a dump already, is written to by another process, or cannot be written.
        """
        self._lock = prepare_root(root, rank, settings.recording, settings.overwrite)
        self._root = root
        self._rank = rank
        self._settings = settings
        self._early: list[bytes] = []  # records of a step that has no files yet
        self._header: Header | None = None
        self._files: StepFiles | None = None
        self._late_records = 0
        self._handed_on = HandedOn(HeaderBudget(), FreeSpace(), release)
        self._unreported: list[int] = []  # steps whose files are there, or will be with the next flush
        self._reported = 0.0  # when steps were last reported

    @property
    def waiting_records(self) -> int:
        """Records that came and are not yet in a file. Any thread may ask."""
        files = self._files
        return len(self._early) + (files.waiting_records if files is not None else 0)

    def begin(self, header: Header) -> None:
        """Begin a step; its files are made at its end, or with its first record that is no text, op, stack or mode."""
        self._header = header

    def records(self, batch: list[bytes]) -> None:
        """Write packed records."""
        if self._files is None and self._header is not None and all(kind_of(record) in _TABLES for record in batch):
            self._early += batch
            return
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

    def flush(self, to_disk: bool = False) -> None:
        """Write what waits; with `to_disk`, where the settings ask for it, have it on the disk."""
        if self._files is not None:
            self._files.flush()
            if to_disk and self._settings.to_disk:
                self._files.sync()
        self._report(at_once=to_disk)

    def flush_records(self) -> None:
        """Write the records that wait, and not the bytes."""
        if self._files is not None:
            self._files.flush_records()

    def flush_in_time(self, _: None) -> None:
        """Write what waits; with `at_once`, bytes that nobody waits for are kept for RELUCTANT_SECONDS first."""
        if self._settings.on_beat is not None:
            self._settings.on_beat()
        files = self._files if self._settings.at_once else None
        if files is None or not files.queued_bytes or time.monotonic() - files.flushed >= RELUCTANT_SECONDS:
            self.flush()

    def end(self, end: StepEnd) -> None:
        """Complete the step."""
        files = self._open()
        if files is not None:
            files.finish(end)
        self._files = self._header = None
        self._report()

    def drop(self, _: None) -> None:
        """End a step in which nothing was recorded; it is completed where it has files."""
        self._early.clear()
        if self._files is not None:
            self._files.finish(StepEnd(0, 0, {}, []))
        self._files = self._header = None
        self._report()

    def interrupt(self, notes: list[Note]) -> None:
        """Close the files of a step that never ended; no other step comes."""
        self._early.clear()
        if self._files is not None:
            self._files.records(packed(notes))
            self._files.interrupt()
        self._files = self._header = None
        self._report(at_once=True)
        self._lock.release()

    def error_of(self, error: BaseException) -> StoreError:
        """Return what to say to the user of an error."""
        step = self._header.step if self._header else None
        return _as_store_error(error, self._root, step, self._rank)

    def abandon(self) -> None:
        """Leave the files as they are after an error; no other step comes."""
        files, self._files = self._files, None
        if files is not None:
            files.abandon()
        self._lock.release()

    def _report(self, at_once: bool = False) -> None:
        """Report the steps whose files are there: to do so for each small step costs as much as its files."""
        if self._unreported and (at_once or time.monotonic() - self._reported >= TELL_SECONDS):
            steps, self._unreported = self._unreported, []
            self._reported = time.monotonic()
            if self._settings.on_steps is not None:
                self._settings.on_steps(steps)

    def _open(self) -> StepFiles | None:
        """Return the files of the step that is open, made now if there are none yet."""
        header = self._header
        if self._files is None and header is not None:
            if self._settings.room is not None:
                self._settings.room(0)
            directory = self._root / f"step{header.step}" / f"rank{self._rank}"
            self._files = StepFiles(directory, header, self._settings, self._handed_on)
            self._unreported.append(header.step)
            early, self._early = self._early, []
            self._files.records(early)
            if self._late_records:
                message = f"{self._late_records} records came after the step before had ended and were left out"
                self._files.records(packed([Note(NOTE, "late_records", message, self._late_records)]))
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
