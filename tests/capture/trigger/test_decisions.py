"""The trigger is asked about each call once and in order, when what it needs has come."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.memory.storages import StorageState
from aten_dump.capture.trigger import decisions as decisions_module
from aten_dump.capture.trigger.conditions import Cause, Known
from aten_dump.capture.trigger.decisions import Decisions
from aten_dump.capture.trigger.held_call import HeldCall
from aten_dump.capture.trigger.measured import extremes as extremes_module
from aten_dump.capture.trigger.measured.extremes import ExtremesOfValues
from aten_dump.store.records import Op
from tests.capture.trigger.recording import Ring, call, statistics, storage, value


class Asked:
    """A trigger that fires at results whose greatest element, or whose statistic, is above 100."""

    reads_registers = False

    def __init__(self, wants_extremes: bool) -> None:
        self.calls: list[int] = []
        self._wants_extremes = wants_extremes

    def new_extremes(self) -> ExtremesOfValues | None:
        return ExtremesOfValues(lambda found: found.high > 100) if self._wants_extremes else None

    def begin_step(self) -> None:
        self.calls.append(0)

    def awaits(self, call: HeldCall, known: Known) -> bool:
        return not self._wants_extremes and any(known.awaits_stats(number) for number in call.results)

    def __call__(self, call: HeldCall, op: Op, known: Known) -> Cause | None:
        self.calls.append(call.record.id)
        if self._wants_extremes:
            return Cause(op.op) if any(known.extremes(number) for number in call.results) else None
        stats = [known.stats(number) for number in call.results]
        return Cause(op.op) if any(found and found["max"] > 100 for found in stats) else None


def begun(trigger: Asked, ring: Ring) -> Decisions:
    decisions = Decisions(trigger, most_bytes=400)
    decisions.begin_step(ring.step)
    return decisions


def measured(ring: Ring, decisions: Decisions, number: int, element: float) -> HeldCall:
    """Call `number` returns a tensor of one element."""
    assert decisions.wants_tensors
    tensor = torch.tensor([element])
    decisions.see(tensor, number, StorageState(number, 4, 0))
    ring.take(storage(number, 4), value(number, on=number))
    return ring.step.add(call(number, (), number))


def fired(decided: object) -> list[int]:
    return [one.record.id for one, _ in decided]  # type: ignore[attr-defined]


def test_on_the_cpu_each_call_is_decided_at_once() -> None:
    trigger, ring = Asked(wants_extremes=True), Ring()
    decisions = begun(trigger, ring)
    found = [fired(decisions.on_call(measured(ring, decisions, n, float(x)), 0)) for n, x in ((1, 3), (2, 500), (3, 4))]
    assert found == [[], [2], []]
    assert trigger.calls == [0, 1, 2, 3]
    assert decisions.oldest_undecided(77) == 77


def test_on_a_device_calls_wait_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes_module, "READ_AT_ONCE", frozenset())
    monkeypatch.setattr(extremes_module, "MOST_SECONDS", 1e9)
    trigger, ring = Asked(wants_extremes=True), Ring()
    decisions = begun(trigger, ring)
    for number, element in ((1, 3.0), (2, 500.0), (3, 4.0)):
        assert fired(decisions.on_call(measured(ring, decisions, number, element), copied_bytes=99)) == []
    assert trigger.calls == [0]
    assert decisions.oldest_undecided(77) == 1
    assert fired(decisions.at_the_end(99)) == [2]
    assert trigger.calls == [0, 1, 2, 3]


def test_bytes_that_calls_wait_for_are_not_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the ring's bytes copied since the last look is enough to wait for the device."""
    monkeypatch.setattr(extremes_module, "READ_AT_ONCE", frozenset())
    monkeypatch.setattr(extremes_module, "MOST_SECONDS", 1e9)
    trigger, ring = Asked(wants_extremes=True), Ring()
    decisions = begun(trigger, ring)
    assert fired(decisions.on_call(measured(ring, decisions, 1, 500.0), copied_bytes=99)) == []
    assert fired(decisions.on_call(measured(ring, decisions, 2, 1.0), copied_bytes=100)) == [1]
    assert fired(decisions.on_call(measured(ring, decisions, 3, 500.0), copied_bytes=199)) == []
    assert fired(decisions.on_call(measured(ring, decisions, 4, 1.0), copied_bytes=200)) == [3]


def test_calls_wait_for_statistics_and_others_pass_them() -> None:
    trigger, ring = Asked(wants_extremes=False), Ring(names=("max",))
    decisions = begun(trigger, ring)
    ring.take(value(1, on=1), value(2, on=2))
    assert fired(decisions.on_call(ring.step.add(call(1, (), 1)), 0)) == []
    ring.take(statistics(2, 5.0))
    assert fired(decisions.on_call(ring.step.add(call(2, (), 2)), 0)) == []
    assert trigger.calls == [0, 2]
    ring.take(statistics(1, 101.0))
    assert fired(decisions.on_call(ring.step.add(call(3)), 0)) == [1]
    assert trigger.calls == [0, 2, 1, 3]


def test_the_oldest_is_decided_without_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_module, "_MOST_UNDECIDED", 2)
    trigger, ring = Asked(wants_extremes=False), Ring(names=("max",))
    decisions = begun(trigger, ring)
    for number in (1, 2, 3):
        ring.take(value(number, on=number))
        assert fired(decisions.on_call(ring.step.add(call(number, (), number)), 0)) == []
    assert trigger.calls == [0, 1]
    assert fired(decisions.at_the_end(0)) == []
    assert trigger.calls == [0, 1, 2, 3]
