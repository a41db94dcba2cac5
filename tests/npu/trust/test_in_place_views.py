"""Views made in place write nothing, and give the geometry that they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "t_": Tensor.t_,
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.squeeze_(),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 3), 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_it_is_that_of_the_cpu(name: str) -> None:
    expected = torch.arange(6.0).reshape(2, 3)
    found = expected.to("npu")
    address = found.untyped_storage().data_ptr()
    for x in (expected, found):
        VIEWS[name](x)
    assert (found.shape, found.stride(), found.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert found.untyped_storage().data_ptr() == address
    assert torch.equal(found.cpu(), expected)
