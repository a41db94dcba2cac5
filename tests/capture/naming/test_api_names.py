"""The names of Python-level calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from aten_dump.capture.naming.api_names import name_of_api


class Functions(TorchFunctionMode):
    """Notes what a TorchFunctionMode is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def names_in(run: Callable[[], object]) -> list[tuple[str, str, str] | None]:
    with Functions() as functions:
        run()
    return [name_of_api(func) for func in functions.seen]


X = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("run", "full", "prefix", "api"),
    [
        (lambda: torch.add(X, 1), "torch.add", "Torch", "add"),
        (lambda: X + 1, "torch.Tensor.add", "Tensor", "add"),
        (lambda: X.add_(1), "torch.Tensor.add_", "Tensor", "add_"),
        (lambda: F.linear(X, X), "torch.nn.functional.linear", "Functional", "linear"),
        (lambda: F.gelu(X), "torch.nn.functional.gelu", "Functional", "gelu"),
        (lambda: torch.spmm(X, X), "torch.mm", "Torch", "mm"),
        (lambda: torch.linalg.norm(X), "torch.linalg.norm", "Torch", "linalg.norm"),
        (lambda: torch.einsum("ij->i", X), "torch.functional.einsum", "Torch", "einsum"),
        (lambda: X.T, "torch.Tensor.T.__get__", "Tensor", "T"),
        (lambda: setattr(X, "data", X), "torch.Tensor.data.__set__", "Tensor", "data.__set__"),
    ],
)
def test_names(run: Callable[[], object], full: str, prefix: str, api: str) -> None:
    found = [name for name in names_in(run) if name is not None]
    assert found[0][1:] == (prefix, api)
    assert found[0][0].removeprefix("torch.") == full.removeprefix("torch.")


def test_questions_about_a_tensor_are_no_calls() -> None:
    assert names_in(lambda: (X.shape, X.dtype, X.requires_grad, X.is_leaf)) == [None] * 4


def test_ops_are_no_python_level_calls() -> None:
    assert name_of_api(torch.ops.aten.add.Tensor) is None
    assert name_of_api(torch.ops.aten.add) is None
    assert name_of_api(torch.ops.higher_order.cond) is None


def test_a_function_that_cannot_be_hashed_has_a_name() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]
        __module__ = "torch.somewhere"

        def __call__(self) -> None: ...

    found = name_of_api(Unhashable())
    assert found is not None and (found.prefix, found.api) == ("Torch", "somewhere.Unhashable")
