"""Our modes come and go without a trace, wherever on torch's stacks they are by then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.torch_internals import mode_stack
from aten_dump.capture.torch_internals.mode_stack import (
    DETACH,
    Modes,
    below_autograd,
    detaches_once,
    is_detached_in_sight,
)


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def function_stack() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def dispatch_stack() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]


@pytest.fixture
def ours() -> Iterator[Modes]:
    modes = Modes(_Function(), _Dispatch())
    assert (function_stack(), dispatch_stack()) == ([], [])
    yield modes
    modes.take_off()
    assert (function_stack(), dispatch_stack()) == ([], [])


def test_modes_are_taken_off_from_below_those_of_the_program(ours: Modes) -> None:
    below, above = _Function(), _Dispatch()
    with below:
        ours.push()
        with above:
            ours.take_off()
            assert (function_stack(), dispatch_stack()) == ([below], [above])
            ours.take_off()  # they are not there: nothing happens
            assert (function_stack(), dispatch_stack()) == ([below], [above])


def test_a_function_mode_goes_back_where_it_was(ours: Modes) -> None:
    below, above = _Function(), _Function()
    with below:
        ours.push()
        with above:
            position = mode_stack.take_function_mode_off(ours.function)
            assert position == 1
            assert function_stack() == [below, above]
            mode_stack.put_function_mode_back(ours.function, position)
            assert function_stack() == [below, ours.function, above]
        ours.take_off()


def test_the_function_mode_is_put_on_for_python_code_only_where_it_is_missing(ours: Modes) -> None:
    assert mode_stack.push_function_mode(ours.function)
    assert not mode_stack.push_function_mode(ours.function)
    with mode_stack.without_function_mode(ours.function):
        assert function_stack() == []
    other = _Function()
    with other:
        with mode_stack.without_function_mode(ours.function):  # not the top one: it stays
            assert function_stack() == [ours.function, other]
        mode_stack.pop_function_mode(ours.function)
        assert function_stack() == [ours.function, other]
    mode_stack.pop_function_mode(ours.function)
    assert function_stack() == []


def test_the_dispatch_mode_leaves_only_if_it_is_alone(ours: Modes) -> None:
    mode_stack.push_dispatch_mode(ours.dispatch)
    with mode_stack.without_only_dispatch_mode(ours.dispatch) as off:
        assert off
        assert dispatch_stack() == []
    assert dispatch_stack() == [ours.dispatch]
    other = _Dispatch()
    with other, mode_stack.without_only_dispatch_mode(ours.dispatch) as off:
        assert not off
        assert dispatch_stack() == [ours.dispatch, other]


def test_the_dispatch_mode_goes_below_all_others(ours: Modes) -> None:
    one, two = _Dispatch(), _Dispatch()
    with one, two:
        mode_stack.push_dispatch_mode_below(ours.dispatch)
        assert dispatch_stack() == [ours.dispatch, one, two]
        mode_stack.take_dispatch_mode_off(ours.dispatch)
        assert dispatch_stack() == [one, two]


class Detaches(TorchDispatchMode):
    """Counts what it sees detached."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += func is DETACH
        with below_autograd():
            return func(*args, **(kwargs or {}))


def test_a_mode_sees_what_is_told() -> None:
    with Detaches() as mode:
        torch.ones(1).detach()
    assert detaches_once() == (mode.n == 1)


def test_a_mode_sees_the_detaching_of_saved_results_as_is_told() -> None:
    with Detaches() as mode:
        y = torch.ones(2, 2, requires_grad=True).exp()
    assert is_detached_in_sight(y) == (mode.n > 0)
    with Detaches() as mode:
        _ = y.t().data
    assert is_detached_in_sight(y.t()) == (mode.n > 0)


def test_asking_is_unseen_by_the_modes_that_are_on() -> None:
    detaches_once.cache_clear()
    with Detaches() as mode:
        detaches_once()
        is_detached_in_sight(torch.ones(1))
    assert mode.n == 0


def test_modes_below_see_as_many_as_the_one_that_is_on_top() -> None:
    x = torch.ones(2, requires_grad=True)
    with Detaches() as lowest, Detaches() as low, Detaches() as top:
        y = x.detach().exp() + x.exp().sigmoid()
        y.sum().backward()
    assert lowest.n == low.n == top.n >= 2
    assert x.grad is not None and x.detach().grad_fn is None
