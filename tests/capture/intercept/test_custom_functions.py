"""Custom autograd functions, and functions that the program asks for, as calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.intercept.custom_functions import FunctionCalls, name_of_function, run_as_call
from aten_dump.capture.naming.call_name import CallName
from aten_dump.store import records as r
from tests.capture.autograd.links import Cube
from tests.capture.intercept.modes import Passing
from tests.capture.intercept.watched import Watched
from tests.forked import run
from tests.sampling import one_in

MINE = CallName("train.mine", "Torch", "mine")


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("bad")


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched()
    functions = FunctionCalls(one.watch)
    functions.install()
    yield one
    functions.remove()
    one.recorder.close()


def test_a_function_is_named_by_its_class() -> None:
    class Local(torch.autograd.Function):
        pass

    name = name_of_function(Local)
    assert name == (f"{__name__}.{Local.__qualname__}", "Torch", "Local")
    assert name_of_function(Local) is name and name_of_function(Cube).api == "Cube"


def test_apply_is_a_call_whose_backward_is_the_function_s(watched: Watched) -> None:
    x = torch.full((2,), 2.0, requires_grad=True)
    with watched.modes.dispatch:
        y = Cube.apply(x)
    assert watched.names() == ["Torch.Cube"] and y.tolist() == [8, 8]
    tag = watched.recorder._runs.tags.of(y.grad_fn)
    assert tag is not None and tag.owner is not None and tag.owner.is_function
    assert tag.forward == watched.calls[0].id


_WRITES_TO_A_VIEW = """
import sys
import torch
from aten_dump import DumpConfig, DumpMode


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


with DumpMode(DumpConfig(path=sys.argv[1], level=sys.argv[2])):
    weight = torch.ones(6, requires_grad=True)
    base = weight * 1
    view = base[1:4]
    (Doubles.apply(view).sum() + base.sum()).backward()
print(weight.grad.tolist())
"""


@pytest.mark.parametrize("level", one_in(4, ["mix", "aten", "api", "module"]))
def test_a_function_that_writes_to_a_view_ends(tmp_path: Path, level: str) -> None:
    """Autograd sets a view's hooks while it holds its lock: who asks the view for its node then waits for ever."""
    ended = run(["-c", _WRITES_TO_A_VIEW, str(tmp_path / "dump"), level], tmp_path / "said")
    assert ended.said.endswith("[1.0, 4.0, 4.0, 4.0, 1.0, 1.0]\n"), ended.said


def test_an_error_is_the_program_s_and_the_call_s(watched: Watched) -> None:
    with watched.modes.dispatch, pytest.raises(ValueError, match="bad"):
        Fails.apply(torch.ones(1))
    assert watched.calls[0].error == "ValueError: bad"


def test_the_function_of_full_backward_hooks_is_torch_s_own(watched: Watched) -> None:
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda module, sent, got: None)
    with watched.modes.dispatch:
        model(torch.ones(1, 2, requires_grad=True))
    assert watched.names() == []


def test_where_no_mode_is_or_nothing_is_recorded_it_runs_as_it_is(watched: Watched) -> None:
    x = torch.ones(1)
    Cube.apply(x)
    assert watched.notes() == {"other_threads": 1}
    watched.watch.turn_off()
    with Passing():
        assert Cube.apply(x).tolist() == [1]
    assert watched.names() == []
    watched.watch.turn_on(watched.recorder)


def test_a_failure_of_ours_lets_it_run(watched: Watched) -> None:
    watched.recorder.step.next_id = lambda: 1 // 0
    with watched.modes.dispatch:
        assert Cube.apply(torch.full((1,), 2.0)).tolist() == [8]
    assert [type(error) for error in watched.told.aloud] == [ZeroDivisionError]
    watched.recorder.step.next_id = iter(range(1000, 2000)).__next__


def test_what_was_there_is_put_back() -> None:
    before = vars(torch.autograd.Function)["apply"]
    functions = FunctionCalls(Watched().watch)
    functions.remove()
    functions.install()
    assert vars(torch.autograd.Function)["apply"] is not before
    functions.remove()
    functions.remove()
    assert vars(torch.autograd.Function)["apply"] is before


def test_a_plain_function_is_a_call_where_the_program_asks_for_it() -> None:
    watched = Watched(stacks=True)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return run_as_call(watched.watch, lambda x, by: x * by, MINE, args, kwargs)

    with watched.modes.dispatch:
        result = wrapper(torch.ones(2), by=3)
    assert result.tolist() == [3, 3] and watched.names() == ["Torch.mine"]
    call = watched.calls[0]
    assert call.kwargs == {"by": 3} and call.stack > 0
    texts = {text.id: text.text for text in watched.sink.of(r.TEXT)}
    stacks = {stack.id: stack for stack in watched.sink.of(r.STACK)}
    frames = {frame.id: frame for frame in watched.sink.of(r.FRAME)}
    inner = texts[frames[stacks[call.stack].frame].function]
    assert inner.endswith("test_a_plain_function_is_a_call_where_the_program_asks_for_it"), "who called the wrapper"
    watched.recorder.close()


def test_a_function_that_a_program_makes_for_one_use_goes_when_it_is_done(tmp_path: Path) -> None:
    """Its class, and what its closure held, were kept for good by tables of names."""

    def used() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        factor = torch.full((3,), 2.0)

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * factor

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * factor

        def scaled(x: Tensor) -> Tensor:  # as libraries do that let others override a function of theirs
            if has_torch_function((x,)):
                return handle_torch_function(scaled, (x,), x)
            return Scale.apply(x) * factor

        scaled(torch.ones(3, requires_grad=True)).sum().backward()
        return weakref.ref(factor), weakref.ref(Scale)

    with DumpMode(DumpConfig(tmp_path / "dump")):
        kept = used()
    gc.collect()
    assert [one() for one in kept] == [None, None]
    assert any("scaled" in call.name for call in open_dump(tmp_path / "dump").step(0).rank(0).calls)
