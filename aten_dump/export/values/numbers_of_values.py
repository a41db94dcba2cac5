"""The statistics of a value: as recorded, else computed from its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import torch

from ...dump import Value
from ...errors import MissingDataError
from ...torch_names import DTYPES_WITHOUT_NUMBERS

Number = int | float

# Of a block; of the mean the sum.
_OF_BLOCK: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "min": torch.min,
    "max": torch.max,
    "mean": lambda values: values.sum(dtype=torch.float64),
    "l2norm": lambda values: torch.linalg.vector_norm(values.to(torch.float64)),
    "count": lambda values: torch.tensor(values.numel()),
    "nan": lambda values: values.isnan().sum(),
    "posinf": lambda values: (values == math.inf).sum(),
    "neginf": lambda values: (values == -math.inf).sum(),
    "zero": lambda values: (values == 0).sum(),
    "negative": lambda values: (values < 0).sum(),
    "positive": lambda values: (values > 0).sum(),
}
# Of what the blocks gave, where that is no sum.
_OF_BLOCKS: Final[dict[str, Callable[[list[Number]], Number]]] = {
    "min": min,
    "max": max,
    "l2norm": lambda parts: math.hypot(*parts),
}
_WIDER: Final = {torch.uint16: torch.int64, torch.uint32: torch.int64, torch.uint64: torch.float64}


class StatisticsOf:
    """Statistics of the values of one step and rank, each computed once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._computed: dict[int, dict[str, Number]] = {}  # by value id

    def __call__(self, value: Value) -> dict[str, Number]:
        """Return what was recorded or can be computed, by name; complex numbers and None are left out."""
        if value.stats is not None:
            return {name: number for name, number in value.stats.items() if isinstance(number, int | float)}
        if value.id not in self._computed:
            has_bytes = value.has_data and not value.undefined and not value.opaque
            try:
                self._computed[value.id] = _compute(value, self._names) if has_bytes else {}
            except MissingDataError:  # bytes lost with an interrupted dump
                self._computed[value.id] = {}
        return self._computed[value.id]


def _compute(value: Value, names: Iterable[str]) -> dict[str, Number]:
    """Compute what can be, a block at a time."""
    parts: dict[str, list[Number]] = {name: [] for name in names if name in _OF_BLOCK}
    count = 0
    for _, block in value.blocks():
        count += block.numel()
        is_plain = block.layout == torch.strided and block.dtype not in DTYPES_WITHOUT_NUMBERS
        if not is_plain or block.is_complex() or not block.numel():
            return {"count": value.numel}
        for name, found in parts.items():
            # Numbers, not tensors: those would lie between blocks in memory and keep them from being used again.
            found.append(_OF_BLOCK[name](_real(block)).item())
    numbers = {name: _of_all(name, found) for name, found in parts.items()}
    if "mean" in numbers:
        numbers["mean"] /= count
    return numbers


def _real(block: torch.Tensor) -> torch.Tensor:
    values = block.dequantize() if block.is_quantized else block
    # Not all reductions know all small dtypes, nor unsigned integers of more than a byte.
    if values.dtype in _WIDER:
        return values.to(_WIDER[values.dtype])
    return values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values


def _of_all(name: str, parts: list[Number]) -> Number:
    return math.nan if any(map(math.isnan, parts)) else _OF_BLOCKS.get(name, sum)(parts)
