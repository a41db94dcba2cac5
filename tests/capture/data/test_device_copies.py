"""What of a copy from a device is decided without one: whose copies there are, and how much may wait staged."""

from __future__ import annotations

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


def test_what_was_refused_counts_for_nothing_and_what_was_copied_makes_room(copier: Copier) -> None:
    assert not copier._stage(STAGING_BYTES + 1)
    assert copier._stage(STAGING_BYTES)
    copier._stage(-100)
    assert not copier._stage(101)
    assert copier._stage(100)
