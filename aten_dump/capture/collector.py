"""Objects that Python's collector need not look through.

Theory of operation
    The collector finds circles of objects that nobody else refers to. For each object that it knows it visits what that
    refers to, time and again, and each that was made since brings the next of its full runs nearer, which take in all
    of the program's objects too. What the recorder keeps of each call, node and storage until the backward pass is in
    no circle, whatever the program does, and is let go of by its count of references alone. So the collector is not
    shown it. What such objects refer to stays alive as by any other reference. A dict, which the program may put
    something of its own into, comes back into the collector's sight when it does; from Python 3.14 on it would not, and
    is not hidden.

    The C file beside this one does that for next to nothing, where it was compiled. Without it CPython's own function
    is called, which takes longer than a step of a few hundred calls would gain: so only what comes late in a long step
    is hidden.

    The storages that tensors were asked for are torch's objects, which it keeps as long as the memory; of a program
    whose tensors are saved for backward they would be half of what a step adds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from gc import is_tracked
from typing import Final


def _found() -> Callable[..., None] | None:
    try:
        from ._collector import hide as found
    except ImportError:
        return _found_in_python()
    return found


class _InLongSteps:
    """Hides objects without the C file, once a step is long."""

    def __init__(self, untrack: Callable[[object], None]) -> None:
        self._untrack = untrack
        self.is_long = False

    def hide(self, *objects: object) -> None:
        if self.is_long:
            for one in objects:
                if is_tracked(one):  # CPython takes anything for an object that the collector may know
                    self._untrack(one)


_in_long_steps: _InLongSteps | None = None


def _found_in_python() -> Callable[..., None] | None:
    global _in_long_steps
    try:
        untrack = ctypes.PyDLL(None).PyObject_GC_UnTrack
    except (AttributeError, OSError, TypeError):
        return None
    untrack.argtypes, untrack.restype = [ctypes.py_object], None
    _in_long_steps = _InLongSteps(untrack)
    return _in_long_steps.hide


def note_long_step(is_long: bool) -> None:
    """Note that a step begins, or that it has become long."""
    if _in_long_steps is not None:
        _in_long_steps.is_long = is_long


def _show(*objects: object) -> None:
    """Do nothing: callers ask HIDES first."""


_hide = _found()
HIDES: Final[bool] = _hide is not None
hide: Final[Callable[..., None]] = _hide or _show


def _dicts_come_back() -> bool:
    probe: dict[str, object] = {}
    note_long_step(True)
    hide(probe)
    note_long_step(False)
    probe["key"] = []
    return is_tracked(probe)


HIDES_DICTS: Final[bool] = HIDES and _dicts_come_back()
