"""Inside `quiet()` nobody sees an op, and afterwards all is as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.torch_internals.quiet import quiet
from tests.devices import here


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_no_mode_sees_an_op() -> None:
    x = torch.ones(2)
    with Dispatched() as dispatched, Called() as called:
        with quiet():
            x.exp()
            torch.empty(3)
        assert dispatched.ops == [] and called.count == 0
        x.exp()
    assert dispatched.ops == ["aten::exp"] and called.count == 1


def test_no_subclass_is_asked() -> None:
    x = torch.ones(2).as_subclass(Subclass)
    before = Subclass.seen
    with quiet():
        x.exp()
    assert Subclass.seen == before
    x.exp()
    assert Subclass.seen == before + 1


def test_no_graph_is_made_and_no_number_of_autograd_s_used() -> None:
    x = torch.ones(2, requires_grad=True)
    before = torch._C._autograd._get_sequence_nr()
    with quiet():
        y = x.exp()
        x.sum().item()
    assert y.grad_fn is None and not y.requires_grad
    assert torch._C._autograd._get_sequence_nr() == before
    assert x.exp().grad_fn is not None


def test_a_write_is_not_counted_by_autograd() -> None:
    x = torch.ones(2)
    with quiet():
        x.add_(1)
    assert x._version == 0 and x.tolist() == [2, 2]


def test_autocast_casts_nothing() -> None:
    x = torch.ones(2, 2)
    with torch.autocast(here().type, dtype=torch.bfloat16):
        with quiet():
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


def test_a_transform_does_not_see_what_is_made_in_it() -> None:
    seen: list[tuple[int, ...]] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        with quiet():
            seen.append(tuple(torch.ones(5).add(1).shape))
        return x * 2

    assert torch.func.vmap(body)(torch.ones(3)).tolist() == [2, 2, 2]
    assert seen == [(5,)]


@pytest.mark.parametrize("nested", [1, 2])
def test_all_is_as_it_was_after_an_error(nested: int) -> None:
    x = torch.ones(2, requires_grad=True)

    def fails(depth: int) -> None:
        with quiet():
            if depth > 1:
                fails(depth - 1)
            raise KeyError("ours")

    with Dispatched() as dispatched:
        with pytest.raises(KeyError):
            fails(nested)
        y = x.sin()
    assert dispatched.ops == ["aten::sin"] and y.requires_grad
