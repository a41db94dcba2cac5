"""The stack of an op ends at the program's line that called it, also where no Python-level call is recorded around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aten_dump


def _inner(x: Tensor) -> None:
    with torch._C.DisableTorchFunction():  # no function mode is asked: the ops come straight from these lines
        y = x.sin()  # recorded when it has run
        y.add_(1)  # writes: looked at before and after


def _outer(x: Tensor) -> None:
    _inner(x)


@pytest.mark.parametrize(("name", "line"), [("Aten.sin.0.forward", 2), ("Aten.add_.0.forward", 3)])
def test_the_stack_of_an_op_ends_at_the_line_that_called_it(record: Callable[..., Any], name: str, line: int) -> None:
    x = torch.randn(3)
    frames = record(lambda: _outer(x))[name].stack
    starts = [_inner.__code__.co_firstlineno, _outer.__code__.co_firstlineno]
    assert [(frame.function, frame.line) for frame in frames[:2]] == [
        ("_inner", starts[0] + line),
        ("_outer", starts[1] + 1),
    ]
    assert {frame.file for frame in frames[:2]} == {__file__}


def test_a_folder_whose_name_begins_like_that_of_the_package_is_the_program(record: Callable[..., Any]) -> None:
    file = f"{Path(aten_dump.__file__).parent}_training/train.py"
    names: dict[str, Any] = {"torch": torch}
    exec(
        compile("def step(x):\n    with torch._C.DisableTorchFunction():\n        return x.sin()\n", file, "exec"),
        names,
    )
    frame = record(lambda: names["step"](torch.ones(3)))["Aten.sin.0.forward"].stack[0]
    assert (frame.file, frame.function, frame.line) == (file, "step", 3)


class _Again(nn.Module):
    """Runs itself once more without a module call."""

    def forward(self, x: Tensor, again: bool = True) -> Tensor:
        y = x.exp()
        if again:
            y = self._call_impl(y, again=False)
        return y.sin()


def test_stacks_in_a_module_tell_by_which_frames_its_forward_was_called(record: Callable[..., Any]) -> None:
    model = _Again()

    def body() -> None:
        model(torch.ones(3))
        model(torch.ones(3))

    rank = record(body, model=model)
    first = _Again.forward.__code__.co_firstlineno
    here = [(1,), (1, 3), (4, 3), (4,)]  # lines of forward, from the inside out: exp, exp, sin, sin
    for n in range(2):
        calls = [rank[f"Tensor.{api}.{2 * n + i}.forward"] for api in ("exp", "sin") for i in range(2)]
        found = [tuple(f.line - first for f in call.stack if f.function.endswith("forward")) for call in calls]
        assert found == here
        lines = [f.line - body.__code__.co_firstlineno for f in calls[0].stack if f.function.endswith("body")]
        assert lines == [n + 1]
