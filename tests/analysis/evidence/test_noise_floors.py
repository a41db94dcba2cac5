"""What an honest implementation may be off by a table: roundings of the result, and sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump.analysis.evidence.noise_floors import FLOOR_TEXTS, Limits, summed_terms
from tests.analysis.by_hand import ROUNDOFF, apart, one_call

U = {torch.float64: 2.0**-53, torch.float32: ROUNDOFF, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.mark.parametrize("dtype", U, ids=str)
@pytest.mark.parametrize("terms", [1.0, 64.0])
def test_a_rounding_and_a_half_and_sums_in_float32(dtype: torch.dtype, terms: float) -> None:
    found, summed = Limits.of(dtype, terms), 4 * min(U[dtype], ROUNDOFF) * math.sqrt(terms)
    assert found.rel_l2 == pytest.approx(1.5 * U[dtype] + summed, rel=1e-12)
    assert found.element == pytest.approx(2.5 * U[dtype] + 2 * summed, rel=1e-12)


def test_less_than_one_term_is_one_and_sums_do_not_excuse_everything() -> None:
    assert Limits.of(torch.float32, 0.0) == Limits.of(torch.float32, 1.0) == Limits.of(torch.float32)
    assert Limits.of(torch.float32, 2.0**16) == Limits.of(torch.float32, 1e30)
    assert Limits.of(torch.float32, 2.0**16 * 0.9).rel_l2 < Limits.of(torch.float32, 2.0**16).rel_l2


def test_complex_numbers_are_pairs_of_floats_and_integers_are_exact() -> None:
    assert Limits.of(torch.complex64) == Limits.of(torch.float32)
    assert Limits.of(torch.int64, 99.0) == Limits.of(torch.bool) == Limits(0.0, 0.0)


def test_the_worse_of_norm_and_element_counts() -> None:
    limits = Limits(1e-3, 1e-2)
    assert limits.ratio(apart(2e-3).metrics) == pytest.approx(2.0)  # type: ignore[arg-type]
    assert limits.ratio(apart(1e-3, max_scaled=3e-2).metrics) == pytest.approx(3.0)  # type: ignore[arg-type]
    nothing = Limits(0.0, 0.0)
    assert nothing.ratio(apart(0.0).metrics) == 0.0  # type: ignore[arg-type]
    assert nothing.ratio(apart(1e-30).metrics) == nothing.ratio(apart(0.0, max_scaled=1e-30).metrics) == math.inf  # type: ignore[arg-type]


def test_limits_scale_and_join() -> None:
    assert Limits(1.0, 2.0).times(3.0) == Limits(3.0, 6.0)
    assert Limits(1.0, 4.0).above(Limits(2.0, 3.0)) == Limits(2.0, 4.0)


@pytest.fixture
def terms(tmp_path: Path) -> Callable[..., float]:
    count = iter(range(100))

    def of(op: str, given: Any, *results: torch.Tensor) -> float:
        return summed_terms(one_call(tmp_path / str(next(count)), op, given, results))

    return of


def test_how_many_terms_an_element_sums(terms: Callable[..., float]) -> None:
    x = torch.ones(4, 8)
    assert terms("aten::sum", (x,), torch.tensor(32.0)) == 32.0
    assert terms("aten::add.Tensor", (x, x), x) == 1.0
    assert terms("aten::mm", (x, x.t()), torch.ones(4, 4)) == 8.0, "the inner dimension"
    assert terms("aten::ones", ([4],), torch.ones(4)) == 1.0, "nothing is read"
    assert terms("aten::sum", (x,), torch.empty(0)) == 32.0, "an empty result"
    assert terms("aten::max.dim", (x, 1), torch.ones(4), torch.ones(16)) == 2.0, "the larger result"


def test_every_floor_has_words() -> None:
    assert set(FLOOR_TEXTS) == {"replay", "control", "depth", "dtype", "exact", "semantics", "rule"}
    assert len(set(FLOOR_TEXTS.values())) == 7
