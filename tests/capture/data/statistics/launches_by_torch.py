"""What `fused_launches` does, by torch on the host: for tests of what is done with the results."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

RESULTS = ("low", "high", "sum", "squares", "spread", "nan", "posinf", "neginf", "zero", "negative")
MOST_PROGRAMS = 7


def column(part: NDArray[np.float64]) -> list[float]:
    """Return what is told here of some elements: all but `spread`, which needs the mean of all."""
    numbers = part[~np.isnan(part)]
    low, high = (numbers.min(), numbers.max()) if numbers.size else (math.inf, -math.inf)
    counts = np.isnan(part).sum(), (part == np.inf).sum(), (part == -np.inf).sum()
    return [low, high, part.sum(), np.square(part).sum(), 0.0, *counts, (part == 0).sum(), (part < 0).sum()]


class Launches:
    """What `fused_launches` does, by torch: a column keeps its elements' results in place of its parts."""

    RESULTS, PARTS, MOST_PROGRAMS = RESULTS, len(RESULTS), MOST_PROGRAMS

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}  # by address
        self.by_start: dict[int, NDArray[np.float64]] = {}  # all elements by the first column
        self.together: list[tuple[torch.dtype, int]] = []  # what was launched together

    def address_together(self, tensor: torch.Tensor, is_dense: bool) -> int:
        self.tensors[tensor.data_ptr()] = tensor
        return tensor.data_ptr() if tensor.dim() == 1 else 0

    def programs_of(self, count: int) -> tuple[int, int]:
        return 1, min(MOST_PROGRAMS, -(-count // 3))

    def reduce(self, tensor: torch.Tensor, into: torch.Tensor, start: int, signs: bool, is_dense: bool) -> int:
        if tensor.dim() > 1:
            return 0
        elements = self.by_start[start] = tensor.double().numpy()
        parts = np.array_split(elements, self.programs_of(tensor.numel())[1])
        for number, part in enumerate(parts):
            into[:, start + number] = torch.tensor([float(row) for row in column(part)], dtype=torch.float64)
        return len(parts)

    def reduce_many(
        self,
        rows: list[tuple[int, int, int, int]],
        dtype: torch.dtype,
        table: torch.Tensor,
        into: torch.Tensor,
        signs: bool,
    ) -> None:
        assert table.shape[0] >= len(rows) and table.shape[1] == 4
        self.together.append((dtype, len(rows)))
        for address, count, _, start in rows:
            tensor = self.tensors[address]
            assert (tensor.dtype, tensor.numel()) == (dtype, count)
            self.reduce(tensor, into, start, signs, True)

    def put_together(
        self, places: list[tuple[int, int]], columns: torch.Tensor, table: torch.Tensor, into: torch.Tensor
    ) -> None:
        assert table.shape[0] >= len(places) and table.shape[1] == 2
        for value, (start, programs) in enumerate(places):
            of = columns[:, start : start + programs]
            elements = self.by_start[start]
            low, high, total = of[0].min(), of[1].max(), of[2:].sum(dim=1)
            spread = np.square(elements - elements.mean()).sum()
            row = [float(low), float(high), *total.tolist()]
            into[:, value] = torch.tensor([*row[:4], float(spread), *row[5:]], dtype=torch.float64)
