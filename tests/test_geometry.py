"""How far a tensor reaches in its memory."""

from __future__ import annotations

import pytest
import torch

from aten_dump.geometry import reach

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
