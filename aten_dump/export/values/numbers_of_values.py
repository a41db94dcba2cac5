"""The statistics of a value: as recorded, else computed from its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import torch

from ...dump import Value

Number = int | float

_COMPUTE: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "min": torch.min,
    "max": torch.max,
    "mean": lambda values: values.sum(dtype=torch.float64) / values.numel(),
    "l2norm": lambda values: torch.linalg.vector_norm(values.to(torch.float64)),
    "count": lambda values: torch.tensor(values.numel()),
    "nan": lambda values: values.isnan().sum(),
    "posinf": lambda values: (values == math.inf).sum(),
    "neginf": lambda values: (values == -math.inf).sum(),
    "zero": lambda values: (values == 0).sum(),
    "negative": lambda values: (values < 0).sum(),
    "positive": lambda values: (values > 0).sum(),
}


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
            self._computed[value.id] = _compute(value.tensor(), self._names) if has_bytes else {}
        return self._computed[value.id]


def _compute(tensor: torch.Tensor, names: Iterable[str]) -> dict[str, Number]:
    if tensor.layout != torch.strided or tensor.is_complex() or not tensor.numel():
        return {"count": tensor.numel()}
    values = tensor.dequantize() if tensor.is_quantized else tensor
    if values.is_floating_point() and values.dtype.itemsize < 4:
        values = values.float()  # not all reductions know all small dtypes
    return {name: _COMPUTE[name](values).item() for name in names if name in _COMPUTE}
