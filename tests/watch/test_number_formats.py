"""What a tensor would lose in a format is what converting it loses, by torch's own conversions and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aten_dump.watch.number_formats import FORMATS, lost_in

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def spread(*shape: int) -> Tensor:
    """Return elements of many sizes."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.empty(shape).uniform_(-14, 6, generator=generator)
    return torch.randn(shape, generator=generator) * 10.0**sizes


def shares(tensor: Tensor, name: str) -> dict[str, float]:
    return {key.split(".")[0]: some.item() / of for key, (some, of) in lost_in(tensor, name).shares.items()}


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_elements_are_lost_as_torch_loses_them(name: str) -> None:
    x = spread(64, 129)
    found, there = shares(x, name), x.to(getattr(torch, name)).float()
    assert found["flushed"] == ((x != 0) & (there == 0)).double().mean().item()
    tiny = torch.finfo(getattr(torch, name)).tiny
    assert found["underflow"] == ((x != 0) & (x.abs() < tiny)).double().mean().item() >= found["flushed"]
    assert found["overflow"] == pytest.approx(there.isinf().double().mean().item(), abs=1e-3)
    assert name == "bfloat16" or (found["flushed"] > 0.1 and found["overflow"] > 0.01)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_scaled_to_its_largest_number(name: str) -> None:
    x = spread(40, 40)
    dtype = getattr(torch, name)
    scale = torch.finfo(dtype).max / x.abs().max()
    there = (x * scale).to(dtype).float()
    found = shares(x, name)
    assert found["flushed"] == ((x != 0) & (there == 0)).double().mean().item() > 0.1
    assert found["overflow"] == 0
    assert lost_in(x, name).ends[f"scale.{name}"][0] == scale


def test_the_own_format_is_taken_as_it_is() -> None:
    x = torch.tensor([0.0, 1e-7, 6e-5, 1.0, 65504.0, math.inf, -math.inf, math.nan]).half()
    assert shares(x, "float16") == {"underflow": 2 / 8, "overflow": 2 / 8}
    full = torch.tensor([448.0, -448.0, 1.0, 0.0]).to(torch.float8_e4m3fn)
    assert shares(full, "float8_e4m3fn")["overflow"] == 0.5


def nearest(x: Tensor, scale: Tensor) -> Tensor:
    """Return what elements become in e2m1 under a scale."""
    size = (x.abs() / scale).unsqueeze(-1)
    return E2M1[(size - E2M1).abs().argmin(-1)]


@pytest.mark.parametrize(("name", "block"), [("mxfp4", 32), ("nvfp4", 16)])
def test_blocks_of_four_bits_by_hand(name: str, block: int) -> None:
    x = spread(40, 3 * block) * 1e-3
    x[1], x[2] = 0, x[2] * 1e-12
    blocks = x.view(-1, block)
    greatest = blocks.abs().amax(1, keepdim=True)
    if name == "mxfp4":
        scale = 2.0 ** (torch.floor(torch.log2(greatest)) - 2)
    else:
        of_tensor = x.abs().max() / (6 * 448)
        scale = (greatest / 6 / of_tensor).to(torch.float8_e4m3fn).float() * of_tensor
    there = torch.where(scale > 0, nearest(blocks, torch.where(scale > 0, scale, 1)), 0)
    found, lost = shares(x, name), (blocks != 0) & (there == 0)
    assert found["flushed"] == pytest.approx(lost.double().mean().item(), abs=1 / x.numel())
    assert found["flushed_blocks"] == ((greatest[:, 0] > 0) & (there == 0).all(1)).double().mean().item()
    is_clipped = (scale > 0) & (greatest / torch.where(scale > 0, scale, 1) > 7)
    assert found["saturated_blocks"] == is_clipped.double().mean().item()
    low, high = lost_in(x, name).ends[f"scales.{name}"]
    assert (low, high) == (scale[greatest > 0].min(), scale[greatest > 0].max())
    assert (name == "mxfp4") == (found["saturated_blocks"] > 0)
    assert (name == "nvfp4") == (found["flushed_blocks"] > 0)


def test_rows_that_are_no_whole_blocks_and_scalars_are_filled_with_zeros() -> None:
    x = torch.ones(3, 20)
    assert shares(x, "nvfp4")["flushed"] == 0 and lost_in(x, "nvfp4").shares["saturated_blocks.nvfp4"][1] == 6
    assert shares(torch.tensor(2.0), "mxfp4") == {"flushed": 0, "saturated_blocks": 0, "flushed_blocks": 0}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("x", [torch.zeros(40), torch.full((40,), math.inf), torch.full((40,), math.nan)], ids=str)
def test_no_number_is_too_odd(name: str, x: Tensor) -> None:
    assert all(0 <= share <= 1 for share in shares(x, name).values())


def test_strides_do_not_matter() -> None:
    x = spread(96, 64)
    for name in FORMATS:
        assert shares(x.t(), name) == shares(x.t().contiguous(), name)
