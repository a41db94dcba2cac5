"""Waits, resizes and callbacks: seen after they ran, as the program made them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist

from aten_dump.capture.intercept.wait_wrappers import Waits
from aten_dump.capture.step.collectives import Flight
from tests.capture.intercept.modes import Passing
from tests.capture.intercept.watched import Watched

needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched()
    waits = Waits(one.watch)
    waits.install()
    yield one
    waits.remove()
    one.recorder.close()


def work(tensor: torch.Tensor) -> tuple[Any, Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    return torch._C._distributed_c10d._create_work_from_future(future), future


@needs_distributed
def test_a_wait_lands_what_the_work_started_and_returns_what_it_returned(watched: Watched) -> None:
    x, y = torch.ones(2), torch.ones(2)
    (mine, future), (other, _) = work(x), work(y)
    flights = [Flight(mine, {}, [x], None), Flight(other, {}, [y], None)]
    watched.recorder.flights.adopt(flights)
    future.set_result([x])
    assert mine.wait() is True
    assert watched.recorder.flights.pending == [flights[1]] and flights[0].waiting == 0


@needs_distributed
def test_a_wait_that_fails_lands_nothing(watched: Watched) -> None:
    x = torch.ones(2)
    mine, _ = work(x)
    flight = Flight(mine, {}, [x], None)
    watched.recorder.flights.adopt([flight])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        mine.wait("soon")
    assert watched.recorder.flights.pending == [flight] and flight.waiting == 0


@needs_distributed
def test_while_a_thread_waits_the_flight_is_not_complete(watched: Watched) -> None:
    x, seen = torch.ones(2), []
    mine, future = work(x)
    flight = Flight(mine, {}, [x], None)
    watched.recorder.flights.adopt([flight])

    def answer() -> None:
        seen.append((flight.waiting, flight.complete()))
        future.set_result([x])

    def later() -> None:
        deadline = time.monotonic() + 20
        while not flight.waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        answer()

    thread = threading.Thread(target=later)
    thread.start()
    mine.wait()
    thread.join()
    assert seen == [(1, False)]


def test_a_resize_of_a_storage_is_told_with_its_size_before(watched: Watched) -> None:
    x = torch.ones(4)
    values = watched.recorder.values
    before = values.value_of(x, False)
    assert x.untyped_storage().resize_(64) is not None
    state = values.storages.state_of(x)
    assert state is not None and state.nbytes == 64 and state.written is not None, "what it grew by is undefined"
    assert values.value_of(x, False) != before


def test_a_resize_that_fails_is_the_program_s_error(watched: Watched) -> None:
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match="expects an int"):
        x.untyped_storage().resize_("large")  # type: ignore[arg-type]
    assert watched.told.aloud == []


@needs_distributed
@pytest.mark.parametrize("way", ["then", "add_done_callback"])
def test_after_a_callback_that_no_mode_sees_memory_is_not_trusted(watched: Watched, way: str) -> None:
    x, ran = torch.ones(2), []
    before = watched.recorder.values.value_of(x, False)
    future: torch.futures.Future[Any] = torch.futures.Future()
    getattr(future, way)(lambda done: ran.append(done.value()))
    with Passing():
        future.set_result(3)
    assert ran == [3] and watched.recorder.values.value_of(x, False) == before, "it was seen"
    other: torch.futures.Future[Any] = torch.futures.Future()
    getattr(other, way)(lambda done: ran.append(done.value()))
    other.set_result(4)
    assert ran == [3, 4] and watched.recorder.values.value_of(x, False) != before


@needs_distributed
def test_what_then_returns_is_the_program_s(watched: Watched) -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    following = future.then(lambda done: done.value() + 1)
    future.set_result(1)
    assert following.wait() == 2
    assert not watched.told.aloud


def test_a_step_that_is_over_or_paused_is_told_of_what_it_must_know(watched: Watched) -> None:
    x = torch.ones(4)
    values = watched.recorder.values
    assert values.storages.state_of(x) is not None
    watched.watch.turn_off()  # a pause: the step goes on
    x.untyped_storage().resize_(64)
    assert values.storages.states[x.untyped_storage()._cdata].nbytes == 64
    watched.watch.in_step = None
    x.untyped_storage().resize_(128)
    assert values.storages.states[x.untyped_storage()._cdata].nbytes == 64
    watched.watch.turn_on(watched.recorder)


def test_a_failure_of_ours_is_told_after_the_program_s_call(watched: Watched) -> None:
    x = torch.ones(4)
    watched.recorder.values.storages._announce = lambda state, device: 1 // 0  # type: ignore[assignment,func-returns-value]
    x.untyped_storage().resize_(64)
    assert x.untyped_storage().nbytes() == 64
    assert [type(error) for error in watched.told.aloud] == [ZeroDivisionError]


def test_in_our_own_code_nothing_is_told(watched: Watched) -> None:
    x = torch.ones(4)
    with watched.recorder.step.here.state.own:
        x.untyped_storage().resize_(64)
    assert not watched.recorder.values.storages.knows(x)


def test_what_was_there_is_put_back_and_wrapped_once() -> None:
    before = torch.UntypedStorage.resize_
    waits = Waits(Watched().watch)
    waits.install()
    wrapped = torch.UntypedStorage.resize_
    waits.install()
    assert torch.UntypedStorage.resize_ is wrapped is not before
    assert wrapped.__name__ == before.__name__
    waits.remove()
    waits.remove()
    assert torch.UntypedStorage.resize_ is before
