"""Where the program is, seen from inside the recorder."""

from __future__ import annotations

import sys
from types import FrameType

from ..naming.interned_tables import OWN_CODE


def program_frame() -> FrameType | None:
    """Return the program's innermost frame on this thread; None where it has none.

    The engine runs the backward of an accelerator's tensors on threads of its own, on which nothing but the recorder
    is Python. Compiled functions have no frames, so the number of the recorder's frames differs between builds.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(OWN_CODE):
        frame = frame.f_back
    return frame
