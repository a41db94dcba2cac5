"""What is gathered is sent by its threads and by ticks; a tick never waits."""

from __future__ import annotations

import threading

from aten_dump.capture.data.flushing import Flushable


class Letters(Flushable):
    """Gathers letters."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[str] = []
        self.sent: list[str] = []

    def _has_any(self) -> bool:
        return bool(self.gathered)

    def _send(self) -> None:
        self.sent.append("".join(self.gathered))
        self.gathered = []


def test_a_tick_sends_what_was_gathered_and_nothing_else() -> None:
    letters = Letters()
    letters.tick()
    assert letters.sent == []
    letters.gathered += "ab"
    letters.tick()
    letters.tick()
    assert letters.sent == ["ab"]


def test_a_tick_leaves_it_to_the_thread_that_is_at_it() -> None:
    letters = Letters()
    letters.gathered += "ab"
    with letters._lock:
        ticks = threading.Thread(target=letters.tick)
        ticks.start()
        ticks.join(20)
        assert not ticks.is_alive(), "the writer's thread waits for one that may be waiting for it"
    assert letters.sent == []
    letters.flush()
    assert letters.sent == ["ab"]
