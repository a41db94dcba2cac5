"""How many bytes of blobs are kept; once spent, the budget stays spent."""

from __future__ import annotations

from aten_dump.store.writing.byte_budget import ByteBudget


def test_no_limit() -> None:
    budget = ByteBudget(None)
    assert all(budget.take(1 << 60) for _ in range(5))
    assert budget.take_notes() == []


def test_exactly_the_budget_fits() -> None:
    budget = ByteBudget(10)
    assert [budget.take(n) for n in (4, 6, 0, 1)] == [True, True, True, False]


def test_once_spent_it_stays_spent_also_for_what_would_fit() -> None:
    budget = ByteBudget(10)
    assert [budget.take(n) for n in (4, 7, 1, 6)] == [True, False, False, False]
    (note,) = budget.take_notes()
    assert note.message == "max_bytes=10 was spent: 3 blobs of 14 bytes in this step were not kept"
    assert (note.code, note.count) == ("max_bytes", 3)
    assert budget.take_notes() == [], "it is said once"
    assert not budget.take(1), "also in the next step"


def test_a_step_forgets_what_the_step_before_left_out() -> None:
    budget = ByteBudget(10)
    budget.take(11)
    budget.begin_step()
    assert budget.take_notes() == []
    assert not budget.take(1)
    assert budget.take_notes()[0].count == 1


def test_what_is_given_back_can_be_taken_again() -> None:
    budget = ByteBudget(10)
    assert budget.take(10)
    budget.give_back(4)
    assert budget.take(4) and not budget.take(1)
