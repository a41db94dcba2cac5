"""The wrapper that torch.compile puts around a function: it is found, and what it calls and returns is told."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump.capture.torch_internals.compiler import (
    UNSEEN,
    is_for_higher_order,
    leave_alone,
    name_of_compiled,
    result_of,
    set_compiler,
    wrapper_of,
)
from aten_dump.capture.torch_internals.patches import Patch


def _plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _asked(run: Callable[[], Any]) -> list[tuple[FrameType, bool]]:
    """Return the frames that ask dynamo to switch the compiler, once each, and whether that is for an operator."""
    import torch._dynamo.eval_frame as module

    frames: dict[int, tuple[FrameType, bool]] = {}
    switch = module._maybe_set_eval_frame

    def asked(callback: Any) -> Any:
        before, frame = set_compiler(None), sys._getframe(1)
        frames.setdefault(id(frame), (frame, is_for_higher_order(frame)))
        set_compiler(before)
        return switch(callback)

    leave_alone(asked)
    patch = Patch(module, "_maybe_set_eval_frame", asked)
    try:
        run()
    finally:
        patch.undo()
    return list(frames.values())


def test_the_wrapper_of_a_compiled_function_is_told_from_one_of_a_disabled_function() -> None:
    import torch._dynamo.eval_frame as module

    code = wrapper_of(module)
    compiled, disabled = torch.compile(_plus_one, backend="eager"), torch.compiler.disable(_plus_one)
    assert [frame.f_code is code for frame, _ in _asked(lambda: compiled(torch.ones(2)))].count(True) == 1
    assert not any(frame.f_code is code for frame, _ in _asked(lambda: disabled(torch.ones(2))))


def test_a_torch_with_another_wrapper_has_none() -> None:
    assert wrapper_of(sys) is None


def test_a_result_is_told_by_its_name_and_an_error_is_that_of_the_call() -> None:
    def named() -> Any:
        result = 3  # noqa: F841
        return result_of(sys._getframe(), None)

    def nameless() -> Any:
        return result_of(sys._getframe(), sys.exc_info()[1])

    def failing(handled: BaseException | None) -> Any:
        try:
            raise KeyError("its own")
        except KeyError:
            return result_of(sys._getframe(), handled)

    assert named() == (3, None)
    assert nameless() == (UNSEEN, None)
    try:
        raise ValueError("of the program, handled while it calls")
    except ValueError as error:
        assert nameless() == (UNSEEN, None)
        result, found = failing(error)
        assert result is None and isinstance(found, KeyError)


def test_a_function_is_named_as_its_program_names_it() -> None:
    def frame_of(fn: Any) -> Any:
        return sys._getframe()

    def local() -> None:
        pass

    assert name_of_compiled(frame_of(_plus_one)) == "_plus_one"
    assert name_of_compiled(frame_of(local)) == "local"
    assert name_of_compiled(frame_of(nn.Tanh().forward)) == "Tanh"
    assert name_of_compiled(frame_of(functools.wraps(_plus_one)(lambda x: x))) == "_plus_one"
    assert name_of_compiled(frame_of(functools.partial(_plus_one))) == "partial"


@pytest.mark.parametrize("operator", [True, False])
def test_what_an_operator_has_compiled_is_told_from_what_the_program_has(operator: bool) -> None:
    import torch._dynamo.eval_frame as module

    def program() -> Any:
        if not operator:
            return torch.compile(_plus_one, backend="eager")(torch.ones(2))
        return torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (torch.ones(2),))

    code = wrapper_of(module)
    told = [for_operator for frame, for_operator in _asked(program) if frame.f_code is code]
    assert told and set(told) == {operator}


def test_what_is_left_alone_is_not_compiled() -> None:
    graphs: list[Any] = []

    def left(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    def backend(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph

    leave_alone(left)
    torch._dynamo.reset()
    torch.compile(left, backend=backend)(torch.ones(2))
    assert graphs == []


def test_the_compiler_is_switched_off_and_back() -> None:
    before = set_compiler(None)
    assert set_compiler(before) is None
