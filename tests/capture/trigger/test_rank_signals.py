"""Signals between ranks are heard from a thread, each once, and only those of others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from aten_dump import StoreError
from aten_dump.capture.trigger import signal_listener
from aten_dump.capture.trigger.rank_signals import FOLDER, RankSignals, Signal
from aten_dump.capture.trigger.signal_listener import SignalListener

SIGNAL = Signal(rank=1, step=4, position=9, call=12, why="aten::log made NaN")


def test_a_listener_hears_each_signal_of_others_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_listener, "_POLL_SECONDS", 0.01)
    heard: list[Signal] = []
    came = threading.Event()

    def hear(signals: list[Signal]) -> None:
        heard.extend(signals)
        came.set()

    mine, theirs = RankSignals(tmp_path, 0), RankSignals(tmp_path, 1)
    listener = SignalListener(mine, 0, hear)
    mine.write(Signal(0, 4, 1, 1, "my own"))
    theirs.write(SIGNAL)
    assert came.wait(20)
    listener.close()
    theirs.write(SIGNAL)
    assert heard == [SIGNAL], "what is signalled after the end is heard by nobody"
    assert mine.read() == [SIGNAL]


def test_a_signal_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    mine = RankSignals(tmp_path, 0)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / ".step4-rank1-7.json").write_text('{"rank": 1')
    assert mine.read() == []


def test_what_cannot_be_removed_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file, not a folder")
    with pytest.raises(StoreError, match=FOLDER):
        RankSignals(tmp_path, 0)
