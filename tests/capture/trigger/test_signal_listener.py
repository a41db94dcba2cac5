"""What ends the listener's thread is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aten_dump.capture.trigger.rank_signals import RankSignals, Signal, SignalListener
from aten_dump.errors import StoreError


def test_an_error_while_others_are_answered_is_told(tmp_path: Path) -> None:
    def heard(signals: list[Signal]) -> None:
        raise StoreError("the disk is full")

    listener = SignalListener(RankSignals(tmp_path, 0), 0, heard)
    listener.raise_error()
    RankSignals(tmp_path, 1).write(Signal(1, 0, 1, 1, "NaN"))
    deadline = time.monotonic() + 30
    with pytest.raises(StoreError, match="the disk is full"):  # noqa: PT012
        while time.monotonic() < deadline:
            listener.raise_error()
            time.sleep(0.02)
    with pytest.raises(StoreError, match="the disk is full"):
        listener.close()
