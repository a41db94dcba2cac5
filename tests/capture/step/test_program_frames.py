"""The program's innermost frame is the first that is not of the package."""

from __future__ import annotations

import sys
from types import FrameType

from aten_dump.capture.naming.interned_tables import OWN_CODE
from aten_dump.capture.step.program_frames import program_frame


def as_ours(depth: int) -> FrameType | None:
    """Ask from a function whose code lies in the package, `depth` of them on top of each other."""
    source = "def ask(n):\n    return ask(n - 1) if n else program_frame()\n"
    names = {"program_frame": program_frame}
    exec(compile(source, f"{OWN_CODE}capture/made_up.py", "exec"), names)
    found: FrameType | None = names["ask"](depth)  # type: ignore[operator]
    return found


def test_it_is_the_caller_s_however_many_of_ours_are_on_top() -> None:
    assert program_frame() is sys._getframe()
    for depth in (0, 1, 5):
        found = as_ours(depth)
        assert found is not None and found.f_code is as_ours.__code__


def test_a_thread_with_nothing_but_ours_has_none() -> None:
    """As the engine's threads of a device: the recorder's hook is the outermost Python frame there."""
    import _thread
    import threading

    done, found = threading.Event(), []
    source = "def ask():\n    found.append(program_frame())\n    done.set()\n"
    names = {"program_frame": program_frame, "found": found, "done": done}
    exec(compile(source, f"{OWN_CODE}capture/made_up.py", "exec"), names)
    _thread.start_new_thread(names["ask"], ())
    assert done.wait(20)
    assert found == [None]
