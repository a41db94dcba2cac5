"""Which modules' arguments a forward pre-hook may replace."""

from __future__ import annotations

import torch
from torch import nn

from aten_dump.capture.torch_internals.module_hooks import BackwardHookFunction, may_replace_arguments


def nothing(*args: object) -> None:
    """Replace nothing."""


def test_own_and_global_hooks_may_replace_arguments() -> None:
    hooked, plain = nn.Linear(2, 2), nn.Linear(2, 2)
    handle = hooked.register_forward_pre_hook(nothing)
    assert may_replace_arguments(hooked) and not may_replace_arguments(plain)
    handle.remove()
    assert not may_replace_arguments(hooked)
    handle = nn.modules.module.register_module_forward_pre_hook(nothing)
    assert may_replace_arguments(plain)
    handle.remove()
    assert not may_replace_arguments(plain)


def test_a_module_that_is_not_ready_has_none() -> None:
    assert not may_replace_arguments(nn.Linear.__new__(nn.Linear))


def test_full_backward_hooks_are_built_on_the_function_that_is_left_out() -> None:
    module = nn.Linear(2, 2)
    module.register_full_backward_hook(nothing)
    result = module(torch.ones(1, 2, requires_grad=True))  # held, as an older torch has no name of a node whose is gone
    node = result.grad_fn
    assert node is not None and node.name() == f"{BackwardHookFunction.__name__}Backward"
