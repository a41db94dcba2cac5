"""A simple number times the baseline is told, and nothing that is none."""

from __future__ import annotations

import math

import pytest
import torch

from aten_dump.analysis.facts.ratio import ratio_sentence, simple_ratio

torch.manual_seed(0)
X = torch.randn(64, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (2.0, "2"),
        (0.5, "1/2"),
        (-1.0, "-1"),
        (0.125, "1/8"),
        (1.5, "3/2"),
        (3.0, "3"),
        (1 / 3, "1/3"),
        (1024.0, "1024"),
    ],
)
def test_simple_numbers(factor: float, text: str, dtype: torch.dtype) -> None:
    baseline = X.to(dtype)
    assert simple_ratio(baseline * factor, baseline) == text


@pytest.mark.parametrize(
    ("factor", "text"),
    [(1 / math.sqrt(32), "sqrt(1/32)"), (math.sqrt(2), "sqrt(2)"), (65536.0, "65536"), (1e-3, "1/1000")],
)
def test_numbers_that_programs_scale_by(factor: float, text: str) -> None:
    assert simple_ratio(X * factor, X) == text


@pytest.mark.parametrize("factor", [1.0, math.pi, 0.7236812, 1.0000001])
def test_other_numbers_are_none(factor: float) -> None:
    assert simple_ratio(X * factor, X) == ""


def test_one_element_that_does_not_fit_is_enough() -> None:
    target = X * 2
    target[3, 3] += 1e-3
    assert simple_ratio(target, X) == ""
    assert simple_ratio((X * 1.02).bfloat16(), X.bfloat16()) == "", "bfloat16 cannot tell 51/50 from its neighbours"


@pytest.mark.parametrize(
    "pair",
    [
        (X, X[:2]),
        (X * 2, torch.zeros_like(X)),
        (torch.full_like(X, math.nan), X),
        (X, torch.full_like(X, math.inf)),
        (torch.ones(2, dtype=torch.int64) * 2, torch.ones(2, dtype=torch.int64)),
        (torch.zeros(0), torch.zeros(0)),
        ((X * 2).to_sparse(), X.to_sparse()),
    ],
)
def test_what_has_no_ratio(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert simple_ratio(*pair) == ""


def test_the_sentence() -> None:
    assert ratio_sentence(X * 2, X) == "The target is exactly 2 times the baseline"
    assert ratio_sentence(X, X) == ""
