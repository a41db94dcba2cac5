"""Requests to a run that records, the answers of its ranks, and the step that they agree on.

Theory of operation
    ``<dump>/control/request.json`` is written by whoever asks (`aten-dump ctl`), ``answer-rank<R>.json`` by each rank
    and ``decision.json`` by the first of them. Each is replaced as a whole, so that it is read whole or not at all, and
    each names the number of its request. None of them is part of the dump: no reader needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from ...errors import FormatError, StoreError
from ..regular_files import open_inside

FOLDER: Final = "control"
_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks of a run; None leaves a thing as it is, and with both None ranks only answer."""

    number: int
    made_unix_ns: int
    steps: str | None = None  # as DumpConfig.steps has it
    level: str | None = None

    @property
    def changes(self) -> bool:
        """Whether it asks for more than an answer."""
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


_Kind = TypeVar("_Kind", Request, Answer, Decision)


class ControlFiles:
    """The control files of one dump."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        self.request_path = os.fspath(self._folder / "request.json")

    def request(self) -> Request | None:
        """Return what was asked last."""
        return self._read("request.json", Request)

    def answer(self, rank: int) -> Answer | None:
        """Return what a rank said last."""
        return self._read(f"answer-rank{rank}.json", Answer)

    def decision(self) -> Decision | None:
        """Return what was decided last."""
        return self._read("decision.json", Decision)

    def write(self, message: Request | Answer | Decision) -> None:
        """Write a message in place of the last of its kind (and rank).

        Raises:
            StoreError: it cannot be written.
        """
        name = f"answer-rank{message.rank}" if isinstance(message, Answer) else type(message).__name__.lower()
        draft = self._folder / f".{name}-{os.getpid()}"
        try:
            self._folder.mkdir(exist_ok=True)
            draft.write_text(json.dumps(dataclasses.asdict(message)) + "\n", encoding="utf-8")
            os.replace(draft, self._folder / f"{name}.json")
        except OSError as error:
            text = f"cannot write {self._folder / name}.json: {error.strerror}; the run cannot be switched from outside"
            raise StoreError(error.errno, text) from error

    def _read(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """Return a message; None where there is none, or one that makes no sense."""
        with contextlib.suppress(OSError, ValueError, RecursionError, FormatError):
            with os.fdopen(open_inside(self._folder / name), "rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            return _message(kind, found)
        return None


def last_decision(attempts: Iterable[Path]) -> Decision | None:
    """Return what was decided last, in the first of these attempts of a program in which anything was."""
    return next((found for root in attempts if (found := ControlFiles(root).decision()) is not None), None)


def _message(kind: type[_Kind], found: Any) -> _Kind | None:
    fields = dataclasses.fields(kind)
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    if type(found) is not dict or not needed <= found.keys():
        return None
    given: dict[str, Any] = {field.name: found[field.name] for field in fields if field.name in found}
    if not all(type(value) in _TYPES[name] for name, value in given.items()):
        return None
    if "silent" in given:
        given["silent"] = tuple(given["silent"])
    return kind(**given)


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("number", "made_unix_ns", "rank", "step", "from_step"), (int,)),
    **dict.fromkeys(("steps", "level"), (str, type(None))),
    "error": (str,),
    "done": (bool,),
    "silent": (list,),
}
