"""After which call an overflow register is found set. `tests/npu/test_trigger.py` has the registers of a device."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.trigger.measured import overflow_registers as module
from aten_dump.capture.trigger.measured.overflow_registers import FoundSet, OverflowRegisters

DEVICE = torch.device("cpu")


class Register:
    """Stands for one: what a reading finds is what it is when the reading is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_set = False
        self.readings = 0
        monkeypatch.setattr(module, "saturates", lambda kind: kind == "cpu")
        monkeypatch.setattr(module, "device_in_use", lambda: DEVICE)
        monkeypatch.setattr(module, "overflow_status", self.read)

    def read(self, device: torch.device) -> torch.Tensor:
        self.readings += 1
        return torch.full((8,), float(self.is_set))


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    return Register(monkeypatch)


def run(found: OverflowRegisters, register: Register, states: str, first: int = 1) -> dict[int, FoundSet]:
    """Let calls end with the register set ("1") or clear ("0") one after the other."""
    for position, state in enumerate(states, first):
        assert found.touch(DEVICE)
        register.is_set = state == "1"
        found.call_ended(position)
    found.collect()
    positions = range(first, first + len(states))
    return {position: one for position in positions if (one := found.found_at(position)) is not None}


def test_the_call_that_set_it_and_none_after(register: Register) -> None:
    found = OverflowRegisters()
    found.begin_step()
    assert run(found, register, "00110110") == {3: FoundSet(DEVICE, True), 6: FoundSet(DEVICE, True)}


def test_what_ran_before_a_step_is_not_blamed_on_a_call(register: Register) -> None:
    found = OverflowRegisters()
    register.is_set = True
    found.begin_step()
    assert run(found, register, "11") == {1: FoundSet(DEVICE, False)}
    found.begin_step()
    assert run(found, register, "110", first=3) == {}, "it is known that it was set"
    register.is_set = True  # of a step that was not recorded
    found.begin_step()
    assert run(found, register, "11", first=6) == {6: FoundSet(DEVICE, False)}


def test_it_is_read_for_calls_that_have_to_do_with_such_a_device(register: Register) -> None:
    found = OverflowRegisters()
    assert not found.touch(torch.device("meta"))
    found.call_ended(1)
    assert (len(found), register.readings) == (0, 0)
    found.touch(DEVICE)
    found.touch(DEVICE)
    found.call_ended(2)
    found.call_ended(3)
    assert (len(found), register.readings) == (1, 1)


def test_readings_wait_for_one_another(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 3)
    monkeypatch.setattr(module, "MOST_SECONDS", 1e9)
    found = OverflowRegisters()
    for position in range(3):
        assert not found.is_due
        found.touch(DEVICE)
        found.call_ended(position)
    assert found.is_due
    found.collect()
    assert not found.is_due and not len(found)


def test_a_device_without_memory_is_asked_again(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(device: torch.device) -> torch.Tensor:
        raise torch.OutOfMemoryError

    found = OverflowRegisters()
    found.begin_step()
    with monkeypatch.context() as patch:
        patch.setattr(module, "overflow_status", none_left)
        assert run(found, register, "1") == {}
    assert run(found, register, "1", first=2) == {2: FoundSet(DEVICE, True)}
