"""Steps between floats: next to each other, across zero, far apart, and between those of unequal kinds."""

from __future__ import annotations

import pytest
import torch

from aten_dump.analysis.distance.metrics import has_ulp, ulp_distance

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_one_step_apart(dtype: torch.dtype) -> None:
    tiny, eps = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).eps
    one = torch.tensor([1.0, 1.0, -1.0, tiny, 0.0], dtype=dtype)
    two = torch.tensor([1 + eps, 1 - eps / 2, -1 - eps, tiny * (1 + eps), 0.0], dtype=dtype)
    assert ulp_distance(one, two).tolist() == [1, 1, 1, 1, 0]
    assert ulp_distance(two, one).tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_both_zeros_are_one_place_and_steps_go_across(dtype: torch.dtype) -> None:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    least = torch.tensor([3], dtype=bits).view(dtype)
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    assert ulp_distance(zeros, zeros.flip(0)).tolist() == [0, 0]
    assert ulp_distance(least, -least).tolist() == [6]
    assert (
        ulp_distance(torch.tensor([1.0], dtype=dtype), torch.tensor([2.0], dtype=dtype)) == 1 / torch.finfo(dtype).eps
    )


def test_what_leaves_int64_is_rounded() -> None:
    far = torch.tensor([1.7e308], dtype=torch.float64)
    assert float(ulp_distance(far, -far)) > 2**63
    near = torch.tensor([1.0], dtype=torch.float64).view(torch.int64)
    assert float(ulp_distance(near.view(torch.float64), (near + 2**52 + 1).view(torch.float64))) == 2**52 + 1


def test_other_kinds_have_none() -> None:
    assert all(map(has_ulp, FLOATS))
    assert not any(map(has_ulp, (torch.int32, torch.complex64, torch.float8_e4m3fn, torch.bool)))
