"""Sums of products in float64, on one thread."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_PIECE: Final = 1 << 13  # elements; numpy gives a product of more to several threads


def sum_of_products(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the sum of the products of two arrays' elements.

    numpy's threads would spin while torch's work, and the other way round: each waits for the other's processor.

    Args:
        one: any number of elements, in one dimension.
        other: as many.
    """
    if one.size <= _PIECE:
        return float(one.dot(other))
    starts = range(0, one.size, _PIECE)
    return sum(float(one[at : at + _PIECE].dot(other[at : at + _PIECE])) for at in starts)
