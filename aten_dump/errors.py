"""Every error of aten_dump, under one base.

A message says what happened, where, what was found, what is allowed and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class AtenDumpError(Exception):
    """Base of all errors that aten_dump raises on purpose.

    Example:
        >>> try:
        ...     open_dump("dump").step(7)
        ... except AtenDumpError as error:
        ...     print(error)
        step 7 is not in dump; recorded steps: 0, 1. Was it selected by DumpConfig.steps?
    """


class ConfigError(AtenDumpError, ValueError):
    """A configuration field has a value that is not allowed.

    Example:
        >>> try:
        ...     DumpConfig(path="dump", level="all")
        ... except ConfigError as error:
        ...     print(error)
        DumpConfig.level is 'all'; ...
    """


class CaptureError(AtenDumpError, RuntimeError):
    """The recorder itself failed; the recorded program is not at fault.

    ``DumpConfig(on_error="warn")`` warns once instead, and the program runs on unrecorded.

    Example:
        >>> issubclass(CaptureError, RuntimeError)
        True
    """


class StoreError(AtenDumpError, OSError):
    """Writing or reading a file of a dump failed (disk full, no permission, existing dump).

    Example:
        >>> try:
        ...     open_dump("no-such-folder")
        ... except StoreError as error:
        ...     print(error)
        cannot open dump no-such-folder: it does not exist; give the directory that DumpConfig.path named
    """


class FormatError(AtenDumpError, ValueError):
    """A file is damaged, or is not what docs/format.md describes.

    Example:
        >>> try:
        ...     open_dump("original")
        ... except FormatError as error:
        ...     print(error)
        original is not a dump: ...
    """


class MissingDataError(AtenDumpError, LookupError):
    """A name, a step, the bytes of a tensor or a statistic was not recorded.

    Example:
        >>> try:
        ...     open_dump("dump").step(0).rank(0).tensor("Aten.addmm.9.forward.output.0")
        ... except MissingDataError as error:
        ...     print(error)
        no call 'Aten.addmm.9.forward.output.0' in dump (step 0, rank 0), which has 62 calls; nearest: ...
    """


class UnfinishedError(AtenDumpError, RuntimeError):
    """Work ended before it was done: memory ran out, or worker processes were killed."""

    def __init__(self, message: str, done: Sequence[Any]) -> None:
        super().__init__(message)
        self.done = list(done)  # results of the work that was done, in order


class ReplayError(AtenDumpError, RuntimeError):
    """A recorded call cannot be run again; the message says why.

    Example:
        >>> try:
        ...     replay("dump", substitute={"Aten.mm.0.backward.output.0": torch.zeros(3, 4)})
        ... except ReplayError as error:
        ...     print(error)
        Aten.mm.0.backward.output.0 has shape (4, 4); the substitute has (3, 4)
    """
