"""The garbage collector walks young objects only while a task fills memory with rows that stay.

Theory of operation
    Handles and their recording hold each other, so a step and rank that is done with is garbage of the oldest
    generation. Torch has a million objects there, and Python may not look at them again for a thousand ranks. So what
    is there before a block is set aside, and at its end only what the block made is collected.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEVER: Final = 1 << 30
_lock = threading.Lock()
_running: list[tuple[tuple[int, int, int], bool]] = []  # of blocks: thresholds before the first, if it froze


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Collect garbage of the oldest generation at the end of a block alone, and only what was made in it.

    What dies young is collected as ever. Blocks may run in several threads: the last that ends collects.
    """
    with _lock:
        freezes = not _running and not gc.get_freeze_count()  # what a program has set aside stays so
        if freezes:
            gc.freeze()
        _running.append(_running[0] if _running else (gc.get_threshold(), freezes))
        gc.set_threshold(*_running[0][0][:2], _NEVER)
    try:
        yield
    finally:
        with _lock:
            thresholds, froze = _running.pop()
            if not _running:
                gc.set_threshold(*thresholds)
                gc.collect()
                if froze:
                    gc.unfreeze()
