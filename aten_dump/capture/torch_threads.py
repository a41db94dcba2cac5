"""The threads that torch's own ops run on: the recorder's C files run on them, and they wait where the program does.

Why, `_torch_threads.h` says. Where these files are not compiled, or torch has another runtime, there is nothing to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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


@cache
def end_team_before_forks() -> None:
    """Have the team end before this process forks, from now on: to record may have begun it in a program that never
    would have, and whoever asks for it in the child, torch's own ops too, would wait for ever. The next op begins it
    anew.
    """
    with contextlib.suppress(OSError, AttributeError):
        pause = _runtime().omp_pause_resource_all
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=lambda: pause(_HARD_PAUSE))


def bell_for_program() -> Bell:
    """Return what the program's threads wait with for a thread of ours.

    After an op, torch's threads spin for milliseconds, each on a core that ours could use: they are to wait too.
    """
    return TeamBell() if IS_COMPILED and team_address() else Bell()


if IS_COMPILED:
    for module in (_team_bell, gather, one_pass, *([hash_functions] if hash_functions.IS_COMPILED else [])):
        module.use_team(team_address())
