"""The garbage collector walks young objects only while a comparison fills memory with rows that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEVER: Final = 1 << 30
_lock = threading.Lock()
_running: list[tuple[int, int, int]] = []  # for each block that runs, the thresholds that the first of them found


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Collect no garbage of the oldest generation in a block: torch has a million objects.

    What dies young is collected as ever. Blocks may run in several threads.
    """
    with _lock:
        _running.append(_running[0] if _running else gc.get_threshold())
        gc.set_threshold(*_running[0][:2], _NEVER)
    try:
        yield
    finally:
        with _lock:
            thresholds = _running.pop()
            if not _running:
                gc.set_threshold(*thresholds)
