"""Every test here runs on one thread and must leave the process as it found it."""

from __future__ import annotations

import pytest

from tests.recorded_step import no_mode_left, one_thread, record

__all__ = ["no_mode_left", "one_thread", "record"]


@pytest.fixture(autouse=True)
def _quiet_process(one_thread: None, no_mode_left: None) -> None:
    pass
