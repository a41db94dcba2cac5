"""A signature tells contents apart, and forgets how they lie."""

from __future__ import annotations

import pytest
import torch

from aten_dump.analysis.signatures.signature import is_same, sign

SIZES = (1, 7, 1024, 1025, 5000)


@pytest.mark.parametrize("size", SIZES)
def test_the_same_elements_in_another_shape_dtype_or_layout_are_the_same(size: int) -> None:
    x = torch.randn(size, 2)
    transposed = x.t().contiguous().t()  # the same elements, other strides
    for other in (x.reshape(2, size), x.double(), transposed, x.clone()):
        assert is_same(sign(x), sign(other))
        assert sign(x).contents == sign(other).contents


@pytest.mark.parametrize("size", SIZES)
def test_other_elements_are_another_signature(size: int) -> None:
    x = torch.randn(size, 2, dtype=torch.float64)
    swapped = x.clone()
    swapped[0, 0], swapped[-1, -1] = x[-1, -1], x[0, 0]
    for other in (x * (1 + 1e-4), -x, swapped, x[: max(1, size // 2)].repeat(3, 1), x.flip(0, 1)):
        assert not is_same(sign(x), sign(other))
    one = x.clone()
    one[size // 2, 0] += 1e-3 * x.norm()
    assert not is_same(sign(x), sign(one))


def test_rounding_of_constants_is_no_difference() -> None:
    x = torch.randn(3000, dtype=torch.float64)
    assert is_same(sign(x), sign(x * (1 + 1e-7)))
    assert is_same(sign(x / 3), sign(x * (1 / 3)))


def test_huge_elements_do_not_hide_the_others() -> None:
    scores = torch.randn(64, 64, dtype=torch.float64)
    for huge in (-1e9, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min):
        mask = torch.full((64, 64), huge, dtype=torch.float64).triu(1)
        assert is_same(sign(scores + mask), sign(scores.clone() + mask))
        assert not is_same(sign(scores + mask), sign(1.001 * scores + mask))


def test_non_finite_elements_are_counted_and_the_others_compared() -> None:
    x = torch.randn(300)
    bad = x.clone()
    bad[7] = torch.nan
    assert sign(bad).nonfinite == 1 and not is_same(sign(x), sign(bad))
    other = bad.clone()
    other[100] += 1
    assert not is_same(sign(bad), sign(other)) and is_same(sign(bad), sign(bad.clone()))


def test_any_layout_has_one() -> None:
    dense = torch.eye(9)
    for other in (dense.to_sparse(), dense.to_sparse_csr(), dense.bool(), dense.to(torch.int64)):
        assert is_same(sign(dense), sign(other))
    assert is_same(
        sign(torch.view_as_complex(dense[:, :2].contiguous()).conj()),
        sign(dense[:, :2].clone() * torch.tensor([1.0, -1.0])),
    )
    assert sign(torch.empty(0, 3)).numel == 0
