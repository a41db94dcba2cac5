"""The frame that calls a function of the recorder's."""

from __future__ import annotations

import sys
from types import FrameType


def calling_frame(above: int = 1) -> FrameType | None:
    """Return the frame so many above the function that asks, which is not compiled; None where there are not so many.

    Autograd's engine calls hooks on threads of its own for an accelerator's tensors. Of such a thread the first frame
    is that of the hook: there is none above it.
    """
    try:
        return sys._getframe(above + 1)
    except ValueError:
        return None
