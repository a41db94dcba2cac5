"""The ops of a gradient scaler in float64 are what torch's kernels compute in float32."""

from __future__ import annotations

import pytest
import torch

from aten_dump.references.gradients import unscale_, update_scale_


@pytest.mark.parametrize("gradient", [1.5, torch.inf, torch.nan])
def test_unscaling_in_float64(gradient: float) -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        gradients = [torch.ones(3, dtype=dtype), torch.full((2,), gradient, dtype=dtype)]
        overflow = torch.zeros(1, dtype=dtype)
        unscale_(gradients, overflow, torch.full((1,), 0.25, dtype=dtype))
        found.append([*torch.cat(gradients).tolist(), overflow.item()])
    torch.testing.assert_close(found[0], found[1], equal_nan=True)


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_updates_of_the_scale_in_float64(taken: int, overflow: float) -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        scale, tracker = torch.full((1,), 8.0, dtype=dtype), torch.full((1,), taken, dtype=torch.int32)
        update_scale_(scale, tracker, torch.full((1,), overflow, dtype=dtype), 2.0, 0.5, 3)
        found.append((scale.item(), tracker.item()))
    assert found[0] == found[1]
