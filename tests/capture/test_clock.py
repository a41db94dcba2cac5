"""A step's times are those of time.perf_counter_ns, however they are read."""

from __future__ import annotations

import time

from aten_dump.capture.clock import perf_counter_ns


def test_it_is_the_clock_of_time() -> None:
    for _ in range(100):
        before, found, after = time.perf_counter_ns(), perf_counter_ns(), time.perf_counter_ns()
        assert type(found) is int and before <= found <= after
