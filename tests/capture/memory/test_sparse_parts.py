"""A sparse tensor's parts are the memory that it stands on; nothing of it is copied."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.memory.sparse_parts import PARTS, sparse_parts
from tests.capture.values.sparse_tensors import sparse


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", PARTS, ids=str)
def test_parts_share_the_memory_of_the_tensor(layout: torch.layout) -> None:
    x = sparse(layout)
    parts = sparse_parts(x)
    assert list(parts) == list(PARTS[layout])
    x.neg_()
    assert parts["values"].sum() == x.to_dense().sum() == -21


def test_a_strided_tensor_has_none() -> None:
    assert sparse_parts(torch.ones(2)) == {}
