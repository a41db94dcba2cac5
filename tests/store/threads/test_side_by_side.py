"""Several functions at once: all are called, whatever one of them raises or the system refuses."""

from __future__ import annotations

import threading

import pytest

from aten_dump.store.threads.side_by_side import side_by_side


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_all_run_at_once_and_the_first_here(count: int) -> None:
    meet = threading.Barrier(max(count, 1), timeout=60)  # passed by none alone
    ran: dict[int, int] = {}

    def work(number: int) -> None:
        meet.wait()
        ran[number] = threading.get_ident()

    side_by_side([lambda number=number: work(number) for number in range(count)])  # type: ignore[misc]
    assert sorted(ran) == list(range(count)) and len(set(ran.values())) == count
    assert ran.get(0, threading.get_ident()) == threading.get_ident()


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 2}, {1, 2}])
def test_the_first_error_is_raised_when_all_have_ended(failing: set[int]) -> None:
    ended: list[int] = []

    def work(number: int) -> None:
        if number in failing:
            raise OSError(number)
        ended.append(number)

    with pytest.raises(OSError) as caught:  # noqa: PT011
        side_by_side([lambda number=number: work(number) for number in range(4)])  # type: ignore[misc]
    assert caught.value.args == (min(failing),)
    assert sorted(ended) == sorted(set(range(4)) - failing)


def test_without_threads_one_comes_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ran: list[int] = []
    side_by_side([lambda number=number: ran.append(number) for number in range(3)])  # type: ignore[misc]
    assert ran == [0, 1, 2]
