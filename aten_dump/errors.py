"""Every error of aten_dump, under one base.

A message says what happened, where, what was found, what is allowed and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class AtenDumpError(Exception):
    """Base of all errors that aten_dump raises on purpose."""


class ConfigError(AtenDumpError, ValueError):
    """A configuration field has a value that is not allowed."""


class CaptureError(AtenDumpError, RuntimeError):
    """The recorder itself failed; the program it records is not at fault."""


class StoreError(AtenDumpError, OSError):
    """Writing or reading a file of a dump failed (disk full, no permission, existing dump)."""


class FormatError(AtenDumpError, ValueError):
    """A file is not what docs/format.md describes, or was damaged."""


class MissingDataError(AtenDumpError, LookupError):
    """What was asked for was not recorded: a name, a step, a tensor's bytes, a statistic."""


class UnfinishedError(AtenDumpError, RuntimeError):
    """Work ended before it was done: memory ran out, or worker processes were killed."""

    def __init__(self, message: str, done: Sequence[Any]) -> None:
        super().__init__(message)
        self.done = list(done)  # results of the work that was done, in order


class ReplayError(AtenDumpError, RuntimeError):
    """A recorded call cannot be run again; the message says why."""
