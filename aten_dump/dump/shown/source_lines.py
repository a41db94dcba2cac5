"""Where the program makes a call, in words: the line that calls torch, and the user's own line that it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ...patterns import is_of_library
from ..argument_decoding import Frame

_ENGINE: Final = re.compile(r"[/\\]torch[/\\](?:autograd[/\\]|_tensor\.py:.*backward$)")


def source_lines(stack: Sequence[Frame]) -> str:
    """Return the innermost line that is not torch's and, where that is of a library, the innermost one of the user's.

    Args:
        stack: innermost first.

    Returns:
        ``file:line in function``, or two of them with ", from " between; empty where no line is known.
    """
    own = next((frame for frame in stack if frame.user), None)
    inner = next((frame for frame in stack if is_beyond_torch(frame)), None)
    if own is None or inner is None or inner == own:
        return str(own or inner or "")
    return f"{inner}, from {own}"


def is_within_backward(stack: Sequence[Frame]) -> bool:
    """True if a line of the program's, or of a library, runs within the backward pass: a custom Function's, a hook's.

    Args:
        stack: of a backward call, innermost first.
    """
    for frame in stack:
        if is_beyond_torch(frame):
            return True
        if _ENGINE.search(f"{frame.file}:{frame.function}"):
            return False
    return False


def is_beyond_torch(frame: Frame) -> bool:
    """Return True if a line is the user's or that of an installed package other than torch."""
    return frame.user or is_of_library(frame.file)
