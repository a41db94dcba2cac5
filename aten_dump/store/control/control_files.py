"""Requests to a run that records, the answers of its ranks, and the step that they agree on.

Theory of operation
    ``<dump>/control/request.json`` is written by whoever asks (`aten-dump ctl`), ``answer-rank<R>.json`` by each rank
    and ``decision.json`` by the first of them. Each is replaced as a whole, so that it is read whole or not at all, and
    each names the number of its request. ``pulse-rank<R>.json`` is a rank's sign of life, of a run of several ranks:
    replaced every few seconds, and once more when its recording ends. None of them is part of the dump: no reader
    needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...errors import FormatError, StoreError
from ..regular_files import open_inside, open_subfolder, replace_inside

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FOLDER: Final = "control"
NOT_SELECTED: Final = "which is not selected"  # of a step, in Pulse.doing
_MOST_BYTES: Final = 1 << 16
_OF_RANK: Final = re.compile(r"(answer|pulse)-rank(0|[1-9][0-9]{0,17})\.json")


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks of a run; None leaves a thing as it is, and with both None ranks only answer."""

    number: int
    made_unix_ns: int
    steps: str | None = None  # as DumpConfig.steps has it
    level: str | None = None

    @property
    def changes(self) -> bool:
        """True if it asks for more than an answer."""
        return self.steps is not None or self.level is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank says when it has read a request, or when it has done what was asked."""

    rank: int
    number: int  # of the request
    step: int  # that the rank is about to begin
    steps: str  # what it records
    level: str
    done: bool = False  # the change holds from `step` on
    error: str = ""  # why it cannot be done


@dataclass(frozen=True, slots=True)
class Decision:
    """From which step on all ranks do what was asked."""

    number: int  # of the request
    from_step: int
    silent: tuple[int, ...] = ()  # ranks that had not answered
    steps: str | None = None  # what holds from then on, asked for now or before
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life of a rank."""

    rank: int
    at_unix_ns: int
    interval_ms: int  # until the next one
    host: str  # with what distinguishes the process ids of containers
    pid: int
    pid_ticks: int  # when the process was started, as /proc/<pid>/stat has it; 0 where the system does not say
    doing: str  # what the recorder does: "records step 3"
    line: str = ""  # of the program's code in which its main thread is, and its callers'; empty while it goes on
    inside: str = ""  # the innermost line of a library that this line has called
    waits: tuple[int, ...] = ()  # ids of the calls of this step for whose Work it waits
    closed: bool = False  # the recording has ended: there will be no other pulse
    error: str = ""  # that ended it


_Kind = TypeVar("_Kind", Request, Answer, Decision, Pulse)
_Message = TypeVar("_Message", bound="DataclassInstance")


class ControlFiles:
    """The control files of one dump."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / FOLDER
        self.request_path = os.fspath(self._folder / "request.json")

    def request(self) -> Request | None:
        """Return what was asked last."""
        return self._read("request.json", Request)

    def answer(self, rank: int) -> Answer | None:
        """Return what a rank said last."""
        return self._read(f"answer-rank{rank}.json", Answer)

    def answers(self) -> list[Answer]:
        """Return what each rank that has answered said last, by rank."""
        return self._of_ranks("answer", Answer)

    def pulses(self) -> list[Pulse]:
        """Return the last sign of life of each rank that has given one, by rank."""
        return self._of_ranks("pulse", Pulse)

    def _of_ranks(self, name: str, kind: type[_Kind]) -> list[_Kind]:
        names: list[str] = []
        with contextlib.suppress(OSError, FormatError):
            folder = open_subfolder(self._root, FOLDER)
            try:
                names = os.listdir(folder)
            finally:
                os.close(folder)
        matches = (_OF_RANK.fullmatch(name) for name in names)
        ranks = sorted(int(match[2]) for match in matches if match and match[1] == name)
        found = ((rank, self._read(f"{name}-rank{rank}.json", kind)) for rank in ranks)
        return [message for rank, message in found if message is not None and getattr(message, "rank", -1) == rank]

    def decision(self) -> Decision | None:
        """Return what was decided last."""
        return self._read("decision.json", Decision)

    def write(self, message: Request | Answer | Decision | Pulse) -> None:
        """Write a message instead of the last of its kind (and rank).

        Raises:
            StoreError: it cannot be written.
        """
        name = type(message).__name__.lower()
        if isinstance(message, (Answer, Pulse)):
            name += f"-rank{message.rank}"
        path = self._folder / f"{name}.json"
        try:
            folder = open_subfolder(self._root, FOLDER, make=True)
            try:
                replace_inside(folder, path, (json.dumps(dataclasses.asdict(message)) + "\n").encode())
            finally:
                os.close(folder)
        except OSError as error:
            text = f"cannot write {path}: {error.strerror}; the run cannot be switched from outside"
            raise StoreError(error.errno, text) from error
        except FormatError as error:
            raise StoreError(f"{error}; until then the run cannot be switched from outside") from error

    def _read(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """Return a message; None where there is none, or one that makes no sense."""
        with contextlib.suppress(OSError, FormatError):
            folder = open_subfolder(self._root, FOLDER)
            try:
                return read_message(kind, self._folder / name, folder)
            finally:
                os.close(folder)
        return None


def last_decision(attempts: Iterable[Path]) -> Decision | None:
    """Return what was decided last, in the first of these attempts of a program in which anything was."""
    return next((found for root in attempts if (found := ControlFiles(root).decision()) is not None), None)


def read_message(kind: type[_Message], path: Path, folder: int) -> _Message | None:
    """Return the message that a file of an open folder holds; None where it makes no sense.

    Raises:
        FormatError: it is no regular file.
        OSError: it cannot be read.
    """
    with os.fdopen(open_inside(path, folder=folder), "rb") as file:
        text = file.read(_MOST_BYTES)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = dataclasses.fields(kind)
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    if type(found) is not dict or not needed <= found.keys():
        return None
    given: dict[str, Any] = {field.name: found[field.name] for field in fields if field.name in found}
    if not all(_TYPES[name](value) for name, value in given.items()):
        return None
    for name in {"silent", "waits"} & given.keys():
        given[name] = tuple(given[name])
    return kind(**given)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


_COUNTS: Final = "number made_unix_ns rank step from_step position call at_unix_ns interval_ms pid pid_ticks"
_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_COUNTS.split(), _is_count),
    **dict.fromkeys(("steps", "level"), lambda value: value is None or type(value) is str),
    **dict.fromkeys(("error", "why", "host", "doing", "line", "inside"), lambda value: type(value) is str),
    **dict.fromkeys(("done", "closed"), lambda value: type(value) is bool),
    **dict.fromkeys(("silent", "waits"), lambda value: type(value) is list and all(map(_is_count, value))),
}
