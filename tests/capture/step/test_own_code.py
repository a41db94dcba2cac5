from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from aten_dump.capture.step.threads import OwnCode


class Seen(TorchFunctionMode):
    """Counts the calls that function modes are asked for."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_function_modes_see_nothing_of_it_and_all_that_comes_after() -> None:
    own, tensor = OwnCode(), torch.ones(2)
    with Seen() as seen:
        with own:
            assert tensor.shape == (2,)
        assert seen.calls == 0
        assert tensor.shape == (2,)
    assert seen.calls == 1


def test_it_lasts_until_it_was_left_as_often_as_entered() -> None:
    own, tensor = OwnCode(), torch.ones(2)
    with Seen() as seen, own:
        with own:
            assert own.depth == 2
        assert own.depth == 1
        assert tensor.shape == (2,)
        assert seen.calls == 0
    assert own.depth == 0


def test_an_error_leaves_it_and_its_time_is_counted() -> None:
    own = OwnCode()
    with pytest.raises(RuntimeError), own:
        raise RuntimeError
    assert own.depth == 0
    before = own.ns
    assert before > 0
    with own, own:
        pass
    assert own.ns > before


def test_the_lock_that_was_taken_is_given_back_also_where_it_appears_within() -> None:
    own, lock = OwnCode(), threading.Lock()
    with own:
        own.lock = lock  # a second thread has come
    assert lock.acquire(blocking=False)
    lock.release()
    with own:
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)
