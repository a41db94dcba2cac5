"""How far a tensor reaches in its memory, and which of its elements are there once."""

from __future__ import annotations

import pytest
import torch

from aten_dump.geometry import once, reach

X = torch.zeros(4, 6)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (X, 24),
        (X.t(), 24),
        (X[:, 1:3], 20),
        (X[::2], 18),
        (X[0, 0], 1),
        (X[:1].expand(5, 6), 6),
        (X[:, :0], 0),
    ],
)
def test_from_the_first_to_the_last_element(tensor: torch.Tensor, expected: int) -> None:
    assert reach(tensor.shape, tensor.stride()) == expected
    if expected:
        memory = torch.arange(100.0)
        seen = memory.as_strided(tensor.shape, tensor.stride())
        assert seen.max() - seen.min() + 1 == expected


@pytest.mark.parametrize(
    ("tensor", "shape"), [(X, (4, 6)), (X[:1].expand(5, 6), (1, 6)), (X[:, :0].expand(4, 0), (4, 0))]
)
def test_what_is_repeated_is_seen_once(tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    assert once(tensor).shape == shape and once(tensor).data_ptr() == tensor.data_ptr()
