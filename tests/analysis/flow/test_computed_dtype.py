"""The dtype in which a side computes: of most products, or the only one; asking for it is no other argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump import compare
from aten_dump.analysis.flow.computed_dtype import calls_by_dtype, computed_dtype

X = torch.linspace(0.1, 2.0, 16).view(4, 4)
MASK = torch.ones(4, 4).triu(1).bool()
HALVES = [torch.bfloat16, torch.float16]


def mask_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(4, 4, dtype=dtype).masked_fill(MASK, torch.finfo(dtype).min)


def alone(dtype: torch.dtype) -> Callable[[], object]:
    return lambda: mask_of(dtype)


def before_products(dtype: torch.dtype) -> Callable[[], object]:
    def run() -> None:
        mask = mask_of(dtype)
        x = torch.linspace(0.1, 2.0, 16, dtype=dtype).view(4, 4)
        (x @ x + mask).float().softmax(-1)

    return run


def before_data(dtype: torch.dtype) -> Callable[[], object]:
    x = X.to(dtype)

    def run() -> None:
        mask = mask_of(dtype)
        (x + mask).float().softmax(-1)

    return run


@pytest.mark.parametrize("program", [alone, before_products, before_data])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_mask_in_the_dtype_of_the_program(
    program: Callable[[torch.dtype], Callable[[], object]], dtype: torch.dtype, record: Callable[..., Any]
) -> None:
    coarse, plain = record(program(dtype)), record(program(torch.float32))
    for found in (compare(coarse, plain), compare(plain, coarse)):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_mask_in_another_dtype_than_the_program(dtype: torch.dtype, record: Callable[..., Any]) -> None:
    def masked(dtype: torch.dtype) -> Callable[[], object]:
        return lambda: X @ X + mask_of(dtype)

    cause = compare(record(masked(dtype)), record(masked(torch.float32))).cause
    assert cause is not None and (cause.kind, cause.row.place.call) == ("argument", "Aten.zeros.0.forward")


def test_which_dtype_that_is(record: Callable[..., Any]) -> None:
    half = X.bfloat16()
    assert computed_dtype(record(lambda: half.exp().sin())) == torch.bfloat16
    assert computed_dtype(record(lambda: X.bfloat16().exp())) is None, "what it is given has another"
    assert computed_dtype(record(lambda: (half @ half, half @ half, X @ X))) == torch.bfloat16
    assert computed_dtype(record(lambda: (half @ half, X @ X))) is None, "half of them are not most"
    assert computed_dtype(record(lambda: torch.arange(3) + 1)) is None
    assert list(calls_by_dtype(record(lambda: X.bfloat16().float()))) == [torch.bfloat16, torch.float32]
