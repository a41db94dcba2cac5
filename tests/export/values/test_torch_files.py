"""A .pt file written a block at a time is the one that torch.save writes, to torch.load in all its ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import Value
from aten_dump.export.formats.to_torch import save_pt
from aten_dump.store import records as r

from .test_numbers_of_values import values_of

NUMBERS = torch.arange(5 * 7 * 11, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.bool, torch.complex128])
@pytest.mark.parametrize("shape", ["rows", "transposed", "one dimension"])
def test_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: str) -> None:
    x = (NUMBERS % 5).to(dtype)
    x = {"rows": x.view(5, 7, 11), "transposed": x.view(7, 55).t(), "one dimension": x}[shape]
    (value,) = values_of(tmp_path, x)
    monkeypatch.setattr(Value.blocks, "__defaults__", (200,))
    save_pt(value, tmp_path / "x.pt")
    for found in (
        torch.load(tmp_path / "x.pt", weights_only=True),
        torch.load(tmp_path / "x.pt", weights_only=True, mmap=True),
    ):
        assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, x.shape, True)
        assert torch.equal(found.view(-1).view(torch.uint8), x.contiguous().view(-1).view(torch.uint8))


def test_a_small_one_keeps_its_stride_and_a_conjugate_is_what_it_reads_as(tmp_path: Path) -> None:
    x = torch.randn(3, 4).t()
    (value,) = values_of(tmp_path, x)
    save_pt(value, tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert torch.equal(found, x) and found.stride() == x.stride()
    (value,) = values_of(tmp_path / "conjugate", torch.tensor([1 + 2j]), flags=r.CONJUGATE)
    save_pt(value, tmp_path / "y.pt")
    found = torch.load(tmp_path / "y.pt", weights_only=True)
    assert not found.is_conj() and found.tolist() == [1 - 2j]
