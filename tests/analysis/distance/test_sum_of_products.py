"""Sums of products, piece by piece."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aten_dump.analysis.distance.metrics import sum_of_products


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 16384, 100_003])
def test_every_element_counts_once(size: int) -> None:
    one, other = np.arange(size, dtype=np.float64), np.full(size, 0.5)
    assert sum_of_products(one, other) == size * (size - 1) / 4


@pytest.mark.parametrize("at", [0, 8191, 8192, 19_999])
def test_what_is_not_finite_shows(at: int) -> None:
    one = np.ones(20_000)
    for wrong in (math.nan, math.inf):
        one[at] = wrong
        assert not math.isfinite(sum_of_products(one, np.ones(20_000)))
    both = np.ones(20_000)
    both[at], both[at - 1] = 1e200, -1e200
    assert not math.isfinite(sum_of_products(both, both)), "beyond the range of float64"
