"""What rounding costs an op: how many terms an element of its result sums up, and what it rounds to on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

_PRODUCTS: Final = (
    "mm",
    "conv",
    "linear",
    "matmul",
    "attention",
    "bilinear",
    "einsum",
    "::mv",
    "::dot",
    "rnn",
    "lstm",
    "gru",
)


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding costs an honest implementation of an op."""

    terms: float = 1.0  # that one element of the result sums up
    dtype: torch.dtype | None = None  # what the op may round to on the way, where that is coarser than the result


def terms_of(op: str, inputs: list[int], outputs: int) -> float:
    """Guess how many terms `op` adds up per element of its result, from the numbers of elements it reads and makes."""
    sizes = sorted(inputs, reverse=True)
    if not sizes or not outputs:
        return 1.0
    if len(sizes) > 1 and is_product(op):
        return max(1.0, math.sqrt(sizes[0] * sizes[1] / outputs))
    return max(1.0, sizes[0] / outputs)


def is_product(op: str) -> bool:
    """Return True if an op multiplies tensors and adds up: a product of matrices, a convolution, attention."""
    return any(name in op for name in _PRODUCTS)
