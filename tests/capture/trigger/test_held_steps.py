"""The ring of steps: what it holds, what it drops, and what windows over several steps write."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import DumpConfig
from aten_dump.capture.trigger import held_steps as held_steps_module
from aten_dump.capture.trigger.held_bytes import HeldBytes
from aten_dump.capture.trigger.held_steps import HeldSteps
from aten_dump.capture.trigger.rank_signals import Signal
from aten_dump.store import records as r
from aten_dump.store.memory_sink import MemorySink
from tests.capture.trigger.recording import call, header


class Steps:
    """Steps of numbered calls in a ring."""

    def __init__(self, before: int, after: int, has_others: bool = False) -> None:
        config = DumpConfig(
            path=str(Path("unused")), data="structure", trigger="nonfinite", trigger_before=before, trigger_after=after
        )
        self.sink = MemorySink()
        self.ring = HeldSteps(config, HeldBytes(0), self.sink, has_others)

    def step(self, number: int, calls: int) -> None:
        """Run a step of so many calls, all decided at once."""
        step = self.ring.begin(header(number))
        for one in range(1, calls + 1):
            position = self.ring.add(step, call(one)).position
            self.ring.forget(position, position)

    def more(self, number: int) -> None:
        """Run a further call of the step in progress."""
        assert self.ring.current is not None
        self.ring.add(self.ring.current, call(number))

    def held(self) -> list[tuple[int, list[int]]]:
        return [(step.number, [held.record.id for held in step.calls]) for step in self.ring._steps]

    def signal(self, step: int, position: int) -> None:
        center = self.ring.numbered(step)
        assert center is not None
        self.ring.write_window(center, Signal(0, step, position, position, "why"))

    def written(self) -> list[tuple[int, list[int]]]:
        """Steps on file, and their calls."""
        found: list[tuple[int, list[int]]] = []
        for record in self.sink.records:
            if isinstance(record, r.Header):
                found.append((record.step, []))
            elif isinstance(record, r.Call):
                found[-1][1].append(record.id)
        return found

    def notes(self) -> list[str]:
        return [note.message.partition("; ")[2] for note in self.sink.of(r.NOTE)]


def test_what_no_window_reaches_is_dropped() -> None:
    steps = Steps(before=4, after=0)
    steps.step(0, 3)
    assert steps.held() == [(0, [1, 2, 3])]
    steps.ring.end({})
    steps.step(1, 2)
    assert steps.held() == [(0, [1, 2, 3]), (1, [1, 2])]
    steps.ring.end({})
    steps.step(2, 3)
    assert steps.held() == [(1, [1, 2]), (2, [1, 2, 3])]


def test_undecided_calls_keep_what_their_window_reaches() -> None:
    steps = Steps(before=1, after=0)
    step = steps.ring.begin(header(0))
    for one in (1, 2, 3, 4, 5):
        steps.ring.forget(steps.ring.add(step, call(one)).position, oldest_undecided=3)
    assert steps.held() == [(0, [2, 3, 4, 5])]


def test_a_window_reaches_back_into_the_step_before() -> None:
    steps = Steps(before=3, after=1)
    steps.step(0, 3)
    steps.ring.end({})
    steps.step(1, 2)
    steps.signal(1, 2)
    steps.more(3)
    steps.ring.end({})
    assert steps.written() == [(0, [2, 3]), (1, [1, 2, 3])]
    assert steps.notes() == ["calls before it were written", "3 calls before it and 1 after it were written"]


def test_a_window_reaches_on_into_the_next_step() -> None:
    steps = Steps(before=0, after=2)
    steps.step(0, 2)
    steps.signal(0, 2)
    steps.ring.end({})
    steps.step(1, 4)
    steps.ring.end({})
    assert steps.written() == [(0, [2]), (1, [1, 2])]
    assert steps.notes()[1] == "calls around it were written"


def test_calls_that_were_not_recorded_part_windows() -> None:
    steps = Steps(before=5, after=5)
    steps.step(0, 2)
    steps.signal(0, 2)
    steps.ring.end({})
    steps.step(2, 2)
    assert steps.written() == [(0, [1, 2])]
    assert steps.held() == [(2, [1, 2])]


def test_several_ranks_hold_the_last_step_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(before=1, after=0, has_others=True)
    steps.step(0, 3)
    steps.ring.end({})
    steps.step(1, 4)
    assert steps.held() == [(0, [1, 2, 3]), (1, [1, 2, 3, 4])]
    monkeypatch.setattr(held_steps_module, "HISTORY", 2)
    steps.ring.forget(7, 7)
    assert steps.held() == [(1, [1, 2, 3, 4])]


def test_a_step_whose_files_are_complete_is_named_in_the_present_one() -> None:
    steps = Steps(before=3, after=0)
    steps.step(0, 2)
    steps.signal(0, 1)
    steps.ring.end({})
    steps.step(1, 1)
    steps.signal(1, 1)
    steps.ring.end({})
    assert steps.written() == [(0, [1]), (1, [1])]
    assert steps.notes()[-2] == "no calls of step 0, whose files were complete, were written"
