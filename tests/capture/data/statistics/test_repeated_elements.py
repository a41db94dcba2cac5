"""Statistics of expanded tensors are those of a copy of them, and take no more memory than what they stand on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.capture.data.statistics import one_tensor
from aten_dump.capture.data.statistics.one_tensor import seen_once
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.config import STATISTICS

ROW = torch.tensor([-2.0, 0.0, 1.5, -1.0, 1e3])
ODD = torch.tensor([-math.inf, 0.0, 1.0, math.nan, math.inf])
EXPANDED: dict[str, Tensor] = {
    "rows": ROW.expand(7, 5),
    "rows of half": ROW.half().expand(7, 5),
    "columns": ROW[:, None].expand(5, 3),
    "between": ROW[:4].view(2, 1, 2).transpose(0, 2).expand(2, 9, 2),
    "gaps": torch.arange(20.0)[::3].expand(4, 7),
    "one element": torch.tensor(-3.0).expand(6),
    "integers": torch.tensor([-3, 7, 0]).expand(4, 3),
    "great integers": torch.tensor([2**62, 2**61, 5]).expand(4, 3),
    "mask": torch.tensor([True, False, True]).expand(4, 3),
    "one truth": torch.tensor(True).expand(4, 3),
    "unsigned": torch.tensor([1, 200], dtype=torch.uint8).expand(9, 2),
    "complex": torch.tensor([3 + 4j, -1j]).expand(5, 2),
    "conjugate": torch.tensor([3 + 4j, -1j]).conj().expand(5, 2),
    "one complex": torch.tensor(3 - 4j).expand(5),
    "negative": torch.tensor([3 + 4j, -1j]).conj().imag.expand(5, 2),
    "odd": ODD[1:3].expand(3, 2),
    "nan": ODD[3:].expand(3, 2),
    "inf": ODD[:2].expand(3, 2),
    "one inf": torch.tensor(-math.inf).expand(3),
    "one nan": torch.tensor(math.nan).expand(3),
    "bytes": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn).expand(3, 2),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_as_of_a_copy(name: str) -> None:
    tensor = EXPANDED[name]
    assert not tensor.is_contiguous()
    with quiet():
        plain = tensor.resolve_conj().resolve_neg().contiguous()
        found, expected = (one_tensor.compute(x, STATISTICS) for x in (tensor, plain))
        chosen = one_tensor.compute(tensor, ("std", "zero"))
    for key, one, other in zip(STATISTICS, found, expected, strict=True):
        assert same(one, other), key
    assert all(map(same, chosen, (expected[STATISTICS.index("std")], expected[STATISTICS.index("zero")])))


def same(one: Any, other: Any) -> bool:
    exact = other is None or isinstance(other, int)
    return one == (other if exact else pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True))


@pytest.mark.parametrize("shape", [(1 << 40, 5), (5, 1 << 40)])
def test_more_elements_than_memory_has_bytes(shape: tuple[int, int]) -> None:
    row = ROW if shape[1] == 5 else ROW[:, None]
    with quiet():
        found = dict(zip(STATISTICS, one_tensor.compute(row.expand(shape), STATISTICS), strict=True))
    assert (found["count"], found["negative"], found["zero"]) == (5 << 40, 2 << 40, 1 << 40)
    assert found["std"] == pytest.approx(ROW.double().std(correction=0).item())
    assert found["l2norm"] == pytest.approx(ROW.double().norm().item() * 2**20)


def test_dimensions_of_one_element_and_empty_tensors_repeat_nothing() -> None:
    tensor = torch.arange(6.0).view(2, 1, 3)[:, :, ::2].expand(2, 1, 2)
    assert seen_once(tensor)[1] == 1
    assert seen_once(torch.empty(0, 1).expand(0, 5))[1] == 1
