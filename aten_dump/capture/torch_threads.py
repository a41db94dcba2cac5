"""The threads that torch's own ops run on: the recorder's C files run on them, and they wait where the program does.

Why, `_torch_threads.h` says. Where these files are not compiled, or torch has another runtime, there is nothing to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import torch

from ..store.threads.bell import Bell
from .data import gather, hash_functions
from .data.statistics import one_pass

try:
    from . import _team_bell
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

_LIBRARY: Final = "libtorch_cpu.so"  # what is linked with the runtime whose threads they are
_HARD_PAUSE: Final = 2  # OpenMP 5.0: give back all that can be made again


def _runtime() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBRARY))


@cache
def team_address() -> int:
    """Return the address of `GOMP_parallel` in the OpenMP runtime that torch uses; 0 where it has none."""
    try:
        found = _runtime().GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


class TeamBell(Bell):
    """A bell for which all threads of the team wait."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        super().__init__()
        self._number = ctypes.c_int64(0)

    def ring(self) -> None:
        """Wake who waits."""
        _team_bell.ring(ctypes.addressof(self._number))

    def wait(self, seconds: float) -> None:
        """Return when it is rung, or after so many seconds."""
        _team_bell.wait(ctypes.addressof(self._number), seconds, torch.get_num_threads())


class TeamEnd:
    """Ends the team before this process forks while something is recorded, and once when that has ended.

    To record may have begun the team in a program that never would have. Whoever asks for it in a child, torch's own
    ops too, would wait for ever. The next op begins it anew.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._pause: Callable[[int], int] | None = None
        self._is_registered = False

    def begin(self) -> None:
        """Something is recorded from now on."""
        if not self._is_registered and hasattr(os, "register_at_fork"):
            self._is_registered = True
            with contextlib.suppress(OSError, AttributeError):
                self._pause = _runtime().omp_pause_resource_all
                os.register_at_fork(before=self._end_team, after_in_child=self._forget)
        self._is_on = True

    def end(self) -> None:
        """Nothing is recorded any more: what was begun for it ends, and forks are the program's own again."""
        self._end_team()
        self._is_on = False

    def _end_team(self) -> None:
        if self._is_on and self._pause is not None:
            self._pause(_HARD_PAUSE)

    def _forget(self) -> None:
        self._is_on = False


TEAM_END: Final = TeamEnd()


def bell_for_program() -> Bell:
    """Return the bell at which the program's threads wait for a thread of the recorder.

    After an op, torch's threads spin for milliseconds, each on a core that the recorder could use: they wait too.
    """
    return TeamBell() if IS_COMPILED and team_address() else Bell()


if IS_COMPILED:
    for module in (_team_bell, gather, one_pass, *([hash_functions] if hash_functions.IS_COMPILED else [])):
        module.use_team(team_address())
