"""While the recorder's own code runs, the thread is busy, holds the lock, and no function mode is asked."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from aten_dump.capture.step.own_code import HookCode, OwnCode
from aten_dump.capture.step.threads import ThreadState


class Asked(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def thread() -> ThreadState:
    return ThreadState(0, 0)


@pytest.mark.parametrize("kind", [OwnCode, lambda thread: HookCode(thread, print)], ids=["own", "hook"])
def test_no_function_mode_sees_a_look_at_a_tensor(thread: ThreadState, kind: Any) -> None:
    x = torch.ones(2)
    with Asked() as asked:
        with kind(thread):
            assert thread.busy
            x.shape, x.exp()
        assert asked.count == 0
        x.exp()
        assert asked.count == 1 and not thread.busy


def test_time_in_it_is_added_up(thread: ThreadState) -> None:
    spent = []
    for _ in range(2):
        with OwnCode(thread):
            time.sleep(0.002)
        spent.append(thread.own_ns)
    assert spent[0] >= 2_000_000 and spent[1] >= spent[0] + 2_000_000


def test_the_lock_is_held_inside_and_free_afterwards_even_after_an_error(thread: ThreadState) -> None:
    lock = threading.Lock()
    thread.lock = lock
    held = []

    def fails() -> None:
        with OwnCode(thread):
            held.append(lock.locked())
            raise KeyError("of the program")

    with pytest.raises(KeyError):
        fails()
    assert held == [True] and not lock.locked() and not thread.busy


def test_a_lock_that_comes_meanwhile_is_not_let_go(thread: ThreadState) -> None:
    """Another thread joined the step while this one was inside: this one entered without the lock."""
    with OwnCode(thread):
        thread.lock = threading.Lock()
    with thread.lock:
        assert not thread.busy


def test_a_failure_of_a_hook_goes_to_the_recorder_and_not_to_the_program(thread: ThreadState) -> None:
    told: list[Exception] = []
    with HookCode(thread, told.append):
        raise ValueError("ours")
    assert [str(error) for error in told] == ["ours"] and not thread.busy


def test_the_recorder_may_raise_it_with_all_undone(thread: ThreadState) -> None:
    def failed(error: Exception) -> None:
        assert not thread.busy
        raise RuntimeError("told") from error

    with pytest.raises(RuntimeError, match="told"), HookCode(thread, failed):
        raise ValueError("ours")


def test_an_interrupt_inside_a_hook_is_the_program_s(thread: ThreadState) -> None:
    told: list[Exception] = []
    with pytest.raises(KeyboardInterrupt), HookCode(thread, told.append):
        raise KeyboardInterrupt
    assert told == [] and not thread.busy


def test_a_hook_without_a_failure_tells_nobody(thread: ThreadState) -> None:
    told: list[Exception] = []
    with HookCode(thread, told.append):
        pass
    assert told == []
