"""Switches a run from outside, at the same step on all ranks: what `aten-dump ctl` asks for.

Theory of operation
    Between two steps each rank looks whether the request's file has changed: one stat. A rank that has read a request
    answers with the step that it is about to begin. When all have answered, the first rank decides from which step on
    the request holds: one that lies ahead of all of them, by two steps and by as many more as it makes in a second.
    Ranks that wait for each other in collectives are never further apart than that, and have read the decision by
    then. It is read at each boundary while one is due, and done at its step. After `_PATIENCE_S` the first rank
    decides without those that have not answered. No collective is used: it would be one more in the program, and
    hang where a rank has ended.

    Requests made before this process began are of an earlier run. A program that a launcher has restarted goes on with
    what was decided in the attempt before: the same files of ended processes, so that all ranks find the same.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..config import DumpConfig
from ..errors import ConfigError
from ..store.control.control_files import Answer, ControlFiles, Decision, Request, last_decision

_BEGAN_UNIX_NS: Final = time.time_ns()
_STEPS_AHEAD: Final = 2
_SECONDS_AHEAD: Final = 1.0
_PATIENCE_S: Final = 10.0


class _Due(NamedTuple):
    """A request that this rank has answered, and what it comes to."""

    request: Request
    since_s: float

    def change(self, config: DumpConfig) -> DumpConfig:
        """Return `config` as it was asked to be.

        Raises:
            ConfigError: it cannot be so.
        """
        return _changed(config, self.request.steps, self.request.level)


def _changed(config: DumpConfig, steps: str | None, level: str | None) -> DumpConfig:
    wanted = {"steps": steps, "level": level}
    return dataclasses.replace(config, **{name: text for name, text in wanted.items() if text is not None})  # type: ignore[arg-type]


class Control:
    """What one rank makes of requests.

    Args:
        root: folder of the dump.
        rank: this one.
        ranks: those that record; the first of them decides.
        attempts: folders of the attempts of this program that a launcher has ended, the last one first.
    """

    def __init__(self, root: Path, rank: int, ranks: Sequence[int], attempts: Sequence[Path] = ()) -> None:
        self._files = ControlFiles(root)
        self._rank = rank
        self._ranks = ranks
        self._seen: tuple[int, int, int] | None = None  # inode, time and size of the last request's file
        self._due: _Due | None = None  # not decided yet
        self._decided: tuple[_Due, int] | None = None  # with the step that it holds from
        self._silent: set[int] = set()  # ranks that have not answered what is due
        self._so_far = last_decision(attempts)
        self._boundary_s = time.monotonic()  # when the last step began
        self._step_s = 0.0  # what it took

    def at_start(self, config: DumpConfig) -> DumpConfig:
        """Return the config of the first step: that of the program, with what was asked of its attempts before."""
        before = self._so_far
        return config if before is None else _changed(config, before.steps, before.level)

    def before_step(self, step: int, config: DumpConfig) -> DumpConfig:
        """Return the config of a step that is about to begin; `config` is that of the step before."""
        now_s = time.monotonic()
        self._step_s, self._boundary_s = now_s - self._boundary_s, now_s
        request = self._new_request()
        if request is not None:
            self._take(request, step, config)
        if self._due is not None:
            self._look_for_decision(self._due, step)
        if self._decided is None or step < self._decided[1]:
            return config
        due, _ = self._decided
        self._decided = None
        changed = due.change(config)
        self._answer(due.request, step, changed, done=True)
        return changed

    def _new_request(self) -> Request | None:
        try:
            found = os.stat(self._files.request_path)
        except OSError:
            return None
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return None
        self._seen = seen
        request = self._files.request()
        return request if request is not None and request.made_unix_ns >= _BEGAN_UNIX_NS else None

    def _take(self, request: Request, step: int, config: DumpConfig) -> None:
        if not request.changes:
            self._answer(request, step, config)
            return
        due = _Due(request, time.monotonic())
        try:
            due.change(config)
        except ConfigError as error:
            self._answer(request, step, config, error=str(error))
            return
        self._due = due
        self._silent = set(self._ranks)
        self._answer(request, step, config)

    def _answer(self, request: Request, step: int, config: DumpConfig, *, done: bool = False, error: str = "") -> None:
        steps = config.steps if isinstance(config.steps, str) else repr(config.steps)
        self._files.write(Answer(self._rank, request.number, step, steps, config.level, done, error))

    def _look_for_decision(self, due: _Due, step: int) -> None:
        if self._rank == self._ranks[0]:
            self._decide(due, step)
        decision = self._files.decision()
        if decision is not None and decision.number == due.request.number:
            self._due, self._decided = None, (due, decision.from_step)

    def _decide(self, due: _Due, step: int) -> None:
        """Decide, where every rank has answered or enough time has gone."""
        number = due.request.number
        answers = [found for rank in sorted(self._silent) if (found := self._files.answer(rank)) is not None]
        self._silent -= {found.rank for found in answers if found.number == number}
        if self._silent and time.monotonic() - due.since_s < _PATIENCE_S:
            return
        every = [found for rank in self._ranks if (found := self._files.answer(rank)) is not None]
        last = max([step, *(found.step for found in every if found.number == number)])
        ahead = 0 if len(self._ranks) == 1 else _STEPS_AHEAD + int(_SECONDS_AHEAD / max(self._step_s, 1e-3))
        so_far, asked = self._so_far, due.request
        steps = asked.steps or (so_far.steps if so_far else None)
        level = asked.level or (so_far.level if so_far else None)
        self._so_far = Decision(number, last + ahead, tuple(sorted(self._silent)), steps, level)
        self._files.write(self._so_far)
