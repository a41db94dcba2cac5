"""Waits for a thread's end tell that they wait, and end where it does nothing any more."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import pytest

from aten_dump.errors import StoreError
from aten_dump.store.threads import bounded_thread
from aten_dump.store.threads.bounded_thread import BoundedThread


def test_a_thread_that_ends_is_waited_for() -> None:
    seen: list[bool] = []
    thread = BoundedThread(lambda: seen.append(thread.is_current), "one")
    thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thread.wait(lambda: "nothing is")
    assert seen == [True] and not thread.is_alive and not thread.is_current
    thread.wait(lambda: "nothing is")


def test_one_that_does_nothing_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_thread, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(bounded_thread, "STILL_SECONDS", 0.2)
    over = threading.Event()
    thread = BoundedThread(lambda: over.wait() and None, "hangs")
    thread.start()
    with (
        pytest.warns(UserWarning, match="waits for the disk, 3 records are left"),
        pytest.raises(StoreError, match=r"nothing was written for 0 s, 3 records are left: the disk hangs"),
    ):
        thread.wait(lambda: "3 records are")
    over.set()


def test_one_that_makes_progress_is_waited_for_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_thread, "STILL_SECONDS", 1.0)

    def run() -> None:
        for _ in range(30):
            threading.Event().wait(0.05)
            thread.progress += 1

    thread = BoundedThread(run, "slow")
    thread.start()
    thread.wait(lambda: "some is")
    assert thread.progress == 30


def test_an_error_that_ends_a_thread_is_told_to_whoever_waits_or_asks() -> None:
    def run() -> None:
        raise KeyError("of what runs")

    thread = BoundedThread(run, "fails")
    thread.start()
    for _ in range(2):
        with pytest.raises(StoreError, match="'fails' has ended: KeyError"):
            thread.wait(lambda: "nothing is")
    with pytest.raises(StoreError, match="KeyError"):
        thread.raise_error()


@pytest.fixture
def hanging() -> Iterator[BoundedThread]:
    over = threading.Event()
    thread = BoundedThread(lambda: over.wait() and None, "hangs")
    thread.start()
    yield thread
    over.set()


def test_nobody_waits_twice_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch, hanging: BoundedThread) -> None:
    monkeypatch.setattr(bounded_thread, "STILL_SECONDS", 0.2)
    with pytest.raises(StoreError, match="hangs"):
        hanging.wait(lambda: "some is")
    with pytest.raises(StoreError, match="hangs"), hanging.waiting(lambda: "some is") as look:
        look()
    hanging.progress += 1
    with hanging.waiting(lambda: "some is") as look:
        look()


def test_after_an_interrupt_it_is_waited_for_as_long_as_there_is_progress(
    monkeypatch: pytest.MonkeyPatch, hanging: BoundedThread
) -> None:
    monkeypatch.setattr(bounded_thread, "INTERRUPTED_SECONDS", 0.3)
    with pytest.raises(KeyboardInterrupt), hanging.waiting(lambda: "some is"):
        raise KeyboardInterrupt
    with hanging.waiting(lambda: "some is") as look:
        for _ in range(6):
            threading.Event().wait(0.1)
            hanging.progress += 1
            look()
    with pytest.raises(StoreError, match="hangs"):
        hanging.wait(lambda: "some is")
