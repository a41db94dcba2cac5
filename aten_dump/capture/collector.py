"""Objects that Python's collector need not look through.

Theory of operation
    The collector finds circles of objects that nobody else refers to. For each object that it knows it visits what that
    refers to, time and again, and each that was made since brings the next of its full runs nearer, which take in all
    of the program's objects too. What the recorder keeps of each call, node and storage until the backward pass is in
    no circle, whatever the program does, and is let go of by its count of references alone. So the collector is not
    shown it, where the C file beside this one was compiled. What such objects refer to stays alive as by any other
    reference. A dict comes back into the collector's sight by itself when something new is put into it.

    The storages that tensors were asked for are torch's objects, which it keeps as long as the memory; of a program
    whose tensors are saved for backward they would be half of what a step adds. They are hidden by `_known_value.c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


def _found() -> Callable[..., None] | None:
    try:
        from ._collector import hide as found
    except ImportError:
        return None
    return found


def _show(*objects: object) -> None:
    """Do nothing: callers ask HIDES first."""


_hide = _found()
HIDES: Final[bool] = _hide is not None
hide: Final[Callable[..., None]] = _hide or _show
