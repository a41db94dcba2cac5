"""The stack of an op ends at the program's line that called it, also where no Python-level call is recorded around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

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
