"""What hooks of ours keep of a saved tensor."""

from __future__ import annotations

import pytest
import torch

from aten_dump import ConfigError, DumpConfig, DumpMode
from aten_dump.capture.torch_internals.engine import SHOWS_TOP_SAVED_HOOKS
from aten_dump.capture.torch_internals.packed_tensors import (
    PackedTensor,
    is_output,
    may_push_hooks,
    pop_hooks,
    push_hooks,
)


def test_an_input_is_kept_and_an_output_detached() -> None:
    x = torch.ones(3, requires_grad=True)
    packed: list[PackedTensor] = []
    push_hooks(lambda t: packed.append(PackedTensor(t, None)) or packed[-1], PackedTensor.unpack)
    try:
        y = x.exp()
        z = y * y
    finally:
        pop_hooks()
    assert [one.is_output for one in packed] == [True, False, False]
    assert packed[0].unpack() is not y and packed[0].unpack().data_ptr() == y.data_ptr()
    assert packed[0].unpack().grad_fn is None and packed[1].unpack() is y
    assert is_output(z) and not is_output(x) and not is_output(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
        packed[0].unpack()


def test_hooks_of_the_program_decide_what_is_kept() -> None:
    packed = PackedTensor(torch.ones(2), (lambda t: t.tolist(), torch.tensor))
    assert packed.unpack().tolist() == [1.0, 1.0]


def test_torch_func_takes_no_hooks() -> None:
    answers: list[bool] = []
    torch.func.grad(lambda t: answers.append(may_push_hooks()) or t.sum())(torch.ones(2))
    assert answers == [False] and may_push_hooks()


def test_hooks_are_refused_where_torch_does_not_tell_those_of_the_program() -> None:
    if SHOWS_TOP_SAVED_HOOKS:
        DumpMode(DumpConfig(path="unused", saved_tensors="hooks"))
        return
    with pytest.raises(ConfigError, match=r'saved_tensors is "hooks": torch .* take "nodes"'):
        DumpMode(DumpConfig(path="unused", saved_tensors="hooks"))
