"""Which nodes run without our mode, by what they are given; tests/promises/test_other_modes.py and the sweep hold their bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aten_dump.capture.torch_internals.formulas_without_mode import OWN_FORMULA_NODES, computes_otherwise


@pytest.mark.parametrize(
    ("make", "of_real", "of_complex"),
    [
        (lambda x: x.prod(), True, True),
        (lambda x: x.cumprod(0), False, True),
        (lambda x: x.cumsum(0), False, False),
    ],
    ids=["prod", "cumprod", "cumsum"],
)
def test_nodes_by_what_they_are_given(make: Callable[[Tensor], Tensor], of_real: bool, of_complex: bool) -> None:
    for dtype, expected in ((torch.float32, of_real), (torch.bfloat16, of_real), (torch.complex64, of_complex)):
        made = make(torch.ones(3, dtype=dtype, requires_grad=True))
        assert made.grad_fn is not None
        node = made.grad_fn.name()
        expected = expected or (node == "CumprodBackward0" and not made.is_cpu)
        found = node in OWN_FORMULA_NODES and computes_otherwise(node, (torch.ones_like(made),))
        assert found == expected, dtype


def test_a_gradient_that_is_not_there_tells_nothing() -> None:
    assert not computes_otherwise("CumprodBackward0", (None,))
    assert computes_otherwise("CumprodBackward0", (None, torch.ones(1, dtype=torch.complex128)))
