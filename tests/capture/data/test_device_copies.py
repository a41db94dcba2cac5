"""What of a copy from a device is decided without one: whose copies there are, and how much may wait staged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.capture.data.device_copies import STAGING_BYTES, Copier, copier_of


@pytest.fixture
def copier() -> Copier:
    return Copier(torch.device("cpu"))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="says what is done without an accelerator")
@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_there_is_no_copier_without_an_accelerator(device: str) -> None:
    assert copier_of(torch.device(device)) is None


def test_no_copier_of_a_device_that_is_not_the_accelerator() -> None:
    assert copier_of(torch.device("cpu")) is None
    assert copier_of(torch.device("meta")) is None


def test_copies_are_staged_up_to_the_limit_and_no_further(copier: Copier) -> None:
    assert copier._stage(STAGING_BYTES - 1)
    assert copier._stage(1)
    assert not copier._stage(1)
    assert not copier._stage(STAGING_BYTES)


class Event:
    """Stands for a device's."""

    def __init__(self, is_done: bool = False) -> None:
        self.is_done = is_done

    def query(self) -> bool:
        return self.is_done


def test_what_was_refused_counts_for_nothing_and_what_was_copied_makes_room(copier: Any) -> None:
    assert not copier._stage(STAGING_BYTES + 1)
    assert copier._stage(STAGING_BYTES)
    copier._staged[done := Event()] = 100
    assert not copier._stage(1)
    copier._let_go(done)
    copier._let_go(done)
    assert not copier._stage(101)
    assert copier._stage(100)


def test_copies_that_are_done_make_room_though_nobody_has_waited_for_them(copier: Any) -> None:
    assert copier._stage(STAGING_BYTES)
    copier._staged.update({Event(is_done=True): 60, Event(is_done=True): 40, Event(): 10, Event(is_done=True): 5})
    assert not copier._stage(101), "what comes after one that is not done is not looked at"
    assert copier._stage(100)
    assert list(copier._staged.values()) == [10, 5]
