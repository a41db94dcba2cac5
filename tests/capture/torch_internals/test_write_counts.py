"""Writes of `_foreach_*_` ops are counted under a mode as without one, on each device in its own way."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.torch_internals.write_counts import inner_writes_counted

KEY = torch._C.DispatchKey.ADInplaceOrView


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_foreach_" not in func.name():
            return func(*args, **(kwargs or {}))
        with inner_writes_counted():
            result = func(*args, **(kwargs or {}))
        assert torch._C._dispatch_tls_is_dispatch_key_excluded(KEY), "as a mode runs with"
        return result


WRITES = {
    "add": lambda x, y: torch._foreach_add_(x, y),
    "mul": lambda x, y: torch._foreach_mul_(x, 2.0),
    "lerp": lambda x, y: torch._foreach_lerp_(x, y, 0.5),
    "addcdiv": lambda x, y: torch._foreach_addcdiv_(x, y, y),
    "zero": lambda x, y: torch._foreach_zero_(x),
    "copy": lambda x, y: torch._foreach_copy_(x, y),
}


@pytest.mark.parametrize("write", WRITES)
def test_they_are_those_of_the_bare_program(write: str) -> None:
    versions = []
    for mode in (nullcontext(), Counting()):
        whole, leaf = torch.ones(4), torch.nn.Parameter(torch.ones(2))
        with torch.no_grad(), mode:
            WRITES[write]([whole[:2], leaf], [torch.ones(2), torch.ones(2)])
        versions.append((whole._version, leaf._version))
    assert versions[0] == versions[1]
    if whole.device.type == "cpu":
        assert versions[0] == (1, 1)


def test_the_key_is_put_back_after_an_error() -> None:
    before = torch._C._dispatch_tls_is_dispatch_key_excluded(KEY)
    with pytest.raises(RuntimeError), inner_writes_counted():
        torch._foreach_add_([torch.ones(2)], [torch.ones(3)])
    assert torch._C._dispatch_tls_is_dispatch_key_excluded(KEY) == before


def test_inference_tensors_have_no_version_to_count_in() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
        with Counting():
            torch._foreach_add_([x], 1)
    assert x.tolist() == [2, 2]
