"""What a trigger may know of values that are held back."""

from __future__ import annotations

import pytest

from aten_dump.capture.trigger.held_bytes import HeldBytes
from aten_dump.capture.trigger.held_values import HeldValues
from aten_dump.store import records as r
from tests.capture.trigger.recording import statistics, value


@pytest.fixture
def held() -> HeldValues:
    return HeldValues(HeldBytes(1 << 10), ("min", "max"))


def test_statistics_have_names(held: HeldValues) -> None:
    held.add(value(1, on=1))
    assert held.stats(1) is None and held.awaits_stats(1)
    held.add_fact(statistics(1, -2.0, 3.0))
    assert held.stats(1) == {"min": -2.0, "max": 3.0}
    assert not held.awaits_stats(1)
    assert held.fact_count == 1


def test_statistics_of_the_same_elements_are_found_through_all_that_name_them(held: HeldValues) -> None:
    for number in (1, 2, 3):
        held.add(value(number, on=1))
    held.add_fact(r.Same(r.SAME, 3, 2, r.SAME_STATISTICS))
    held.add_fact(r.Same(r.SAME, 2, 1, r.SAME_STATISTICS | r.SAME_HASH))
    assert held.stats(3) is None
    held.add_fact(statistics(1, 0.0, 1.0))
    assert held.stats(3) == {"min": 0.0, "max": 1.0}


def test_the_same_hash_is_no_statistics(held: HeldValues) -> None:
    held.add(value(1, on=1))
    held.add(value(2, on=1))
    held.add_fact(statistics(1, 0.0, 1.0))
    held.add_fact(r.Same(r.SAME, 2, 1, r.SAME_HASH))
    assert held.stats(2) is None


def test_a_circle_of_the_same_ends(held: HeldValues) -> None:
    for number, other in ((1, 2), (2, 1)):
        held.add(value(number, on=1))
        held.add_fact(r.Same(r.SAME, number, other, r.SAME_STATISTICS))
    assert held.stats(1) is None


@pytest.mark.parametrize("flags", [r.UNDEFINED, r.OPAQUE])
def test_nothing_is_awaited_of_values_without_contents(held: HeldValues, flags: int) -> None:
    held.add(value(1, on=1, flags=flags))
    assert not held.awaits_stats(1)


def test_nothing_is_awaited_where_there_are_no_statistics() -> None:
    held = HeldValues(HeldBytes(1 << 10), ())
    held.add(value(1, on=1))
    assert not held.awaits_stats(1)


def test_values_without_storage_have_one_of_their_own(held: HeldValues) -> None:
    held.add(value(1, on=4))
    held.add(value(2))
    assert [held.storage(number) for number in (1, 2, 99)] == [4, -2, -99]
