"""The clock that a step's times are told in, read for less where the C file beside this one was compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final


def _found() -> Callable[[], int]:
    if time.get_clock_info("perf_counter").implementation != "clock_gettime(CLOCK_MONOTONIC)":
        return time.perf_counter_ns
    try:
        from ._clock import perf_counter_ns as found
    except ImportError:
        return time.perf_counter_ns
    return found


# By a name that is final: a compiled module finds it without a look into a dict.
perf_counter_ns: Final[Callable[[], int]] = _found()
