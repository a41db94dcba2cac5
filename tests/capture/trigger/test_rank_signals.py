"""Signals between ranks are heard from a thread, each once, and only those of others."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aten_dump import StoreError
from aten_dump.capture.trigger import rank_signals
from aten_dump.capture.trigger.rank_signals import FOLDER, RankSignals, Signal, SignalListener
from tests.checkout import ROOT

SIGNAL = Signal(rank=1, step=4, position=9, call=12, why="aten::log made NaN")


def test_a_listener_hears_each_signal_of_others_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_signals, "_POLL_SECONDS", 0.01)
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


def old(rank: int, tmp_path: Path) -> str:
    """Leave a signal as of a run that ended before this process began; return the name of its file."""
    (tmp_path / FOLDER).mkdir(exist_ok=True)
    path = tmp_path / FOLDER / f"step4-rank{rank}-{rank_signals._process_began_ns() - 10**8}.json"
    path.write_text(json.dumps(dataclasses.asdict(SIGNAL)), encoding="utf-8")
    return path.name


def test_a_rank_that_enters_late_hears_what_was_signalled_before_and_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    ours, theirs = old(0, tmp_path), old(1, tmp_path)
    first = RankSignals(tmp_path, 1)
    first.write(SIGNAL)
    rank_signals._entered.clear()  # the ranks of this test are one process
    late = RankSignals(tmp_path, 0)
    assert late.read() == [SIGNAL] and late.read() == []
    left = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert ours not in left and theirs not in left, "each has removed its own of the earlier run"


def test_a_process_that_enters_again_takes_what_is_there_for_the_earlier_run_s(tmp_path: Path) -> None:
    RankSignals(tmp_path, 1).write(SIGNAL)
    assert RankSignals(tmp_path, 0).read() == []
    rank_signals._entered.clear()
    assert RankSignals(tmp_path, 0).read() == [SIGNAL]


def test_old_signals_are_not_heard_by_a_rank_that_enters_before_their_owner_has_removed_them(tmp_path: Path) -> None:
    old(1, tmp_path)
    assert RankSignals(tmp_path, 0).read() == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells")
def test_a_process_began_before_it_imported_anything() -> None:
    script = "import time; t = time.time(); time.sleep(0.3)\n"
    script += "from aten_dump.capture.trigger import rank_signals as r; print(t - r._process_began_ns() / 1e9)"
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert -0.02 < float(out) < 10


def test_where_no_system_tells_the_import_of_the_package_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert rank_signals._process_began_ns() == rank_signals._IMPORTED_NS


def test_what_cannot_be_removed_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file, not a folder")
    with pytest.raises(StoreError, match=FOLDER):
        RankSignals(tmp_path, 0)


@pytest.mark.parametrize("linked", ["folder", "file"])
def test_signals_are_neither_written_read_nor_removed_through_a_link(tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    names = [f"step4-rank{rank}-{time.time_ns() + 10**12}.json" for rank in (0, 1)]
    for name in names:
        (elsewhere / name).write_text(json.dumps(dataclasses.asdict(SIGNAL)))
    if linked == "folder":
        (tmp_path / FOLDER).symlink_to(elsewhere)
        with pytest.raises(StoreError, match="is a symbolic link"):
            RankSignals(tmp_path, 0)
    else:
        (tmp_path / FOLDER).mkdir()
        mine = RankSignals(tmp_path, 0)
        (tmp_path / FOLDER / names[1]).symlink_to(elsewhere / names[1])
        assert mine.read() == []
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(names)


@pytest.mark.parametrize("text", ["{", "[]", '{"rank": "1"}', "[" * 5000, '{"rank": 1, "step": -4, "why": 3}', "\xff"])
def test_what_makes_no_sense_is_no_signal(tmp_path: Path, text: str) -> None:
    mine, theirs = RankSignals(tmp_path, 0), RankSignals(tmp_path, 1)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / f"step1-rank1-{time.time_ns()}.json").write_text(text, encoding="latin-1")
    theirs.write(SIGNAL)
    assert mine.read() == [SIGNAL]
