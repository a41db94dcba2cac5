"""The numbers of a tensor are torch's, however it is cut into micro-batches and shards."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aten_dump.watch.measurements import Key, Measurements, Tally

KEY = Key("gradient", "w")


def measured(*parts: Tensor, numel: int | None = None, formats: tuple[str, ...] = ()) -> Tally:
    measurements = Measurements(formats)
    for part in parts:
        measurements.add(KEY, part, numel)
    return measurements.collect()[KEY]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_numbers_are_those_of_torch(dtype: torch.dtype) -> None:
    x = torch.randn(37, 11).to(dtype)
    x[x.abs() < 0.2] = 0
    found, wide = measured(x).numbers(), x.double()
    assert found["norm"] == pytest.approx(wide.norm().item())
    assert found["mean"] == pytest.approx(wide.mean().item())
    assert found["std"] == pytest.approx(wide.std(correction=0).item())
    assert found["max"] == wide.abs().max().item()
    assert found["zeros"] == pytest.approx((x == 0).double().mean().item())
    assert "nan" not in found and "inf" not in found
    assert (f"underflow.{str(dtype)[6:]}" in found) == (dtype in (torch.float16, torch.bfloat16))


def test_parts_add_up_to_the_whole() -> None:
    x = torch.randn(1000) + 50
    whole, parts = measured(x, formats=("nvfp4",)), measured(*x.split(160), numel=1000, formats=("nvfp4",))
    ends = {name for name in whole.numbers() if name.startswith("scale")}
    assert ends == {"scale_min.nvfp4", "scale_max.nvfp4"}
    for name in {*whole.numbers()} - ends:
        assert parts.numbers()[name] == pytest.approx(whole.numbers()[name], rel=1e-6), name


def test_replicas_have_the_norm_of_one() -> None:
    x = torch.randn(100)
    assert measured(x, x, x, numel=100).norm == pytest.approx(x.norm().item())


def test_nan_and_infinities_are_shares() -> None:
    found = measured(torch.tensor([1.0, math.nan, math.inf, -math.inf])).numbers()
    assert (found["nan"], found["inf"]) == (0.25, 0.5) and math.isnan(found["norm"]) and math.isnan(found["max"])


def test_what_has_no_numbers_is_left_out() -> None:
    measurements = Measurements()
    measurements.add(KEY, torch.arange(3))
    measurements.add(KEY, torch.empty(0))
    assert measurements.collect() == {}


def test_a_tensor_is_read_when_it_is_added() -> None:
    x, measurements = torch.ones(64), Measurements(("mxfp4",))
    measurements.add(KEY, x)
    x.zero_()
    found = measurements.collect()[KEY].numbers()
    assert (found["norm"], found["flushed.mxfp4"], found["scale_max.mxfp4"]) == (8.0, 0.0, 0.25)
