"""What has the same number is the same."""

from __future__ import annotations

import pytest
import torch

from aten_dump.analysis.signatures.numbering import Numbering
from aten_dump.analysis.signatures.signature import Signature, sign


def test_equal_contents_share_a_number_and_others_do_not() -> None:
    numbering = Numbering()
    tensors = [torch.randn(40, dtype=torch.float64) for _ in range(50)]
    numbers = [numbering.number(sign(tensor)) for tensor in tensors]
    assert len(set(numbers)) == 50
    assert [numbering.number(sign(tensor * (1 + 1e-9))) for tensor in tensors] == numbers
    assert numbering.find(sign(torch.randn(40, dtype=torch.float64))) is None


def test_a_key_keeps_the_numbers_of_results() -> None:
    numbering = Numbering()
    numbering.keep(("aten::mul", 1, 2), (7, 8))
    assert numbering.by_key(("aten::mul", 1, 2)) == (7, 8)
    assert numbering.by_key(("aten::mul", 2, 1)) is None


def test_what_is_only_noise_stands_for_all_that_is_as_small() -> None:
    numbering = Numbering()
    real = numbering.number(sign(torch.full((8,), 1e-3, dtype=torch.float64)))
    nothing = numbering.number(sign(1e-17 * torch.randn(8, dtype=torch.float64))._replace(noise=1e-14))
    assert nothing != real
    assert numbering.find(sign(1e-16 * torch.randn(8, dtype=torch.float64))) == nothing
    assert numbering.find(sign(torch.zeros(8))) == nothing
    assert numbering.find(sign(torch.full((8,), 1e-3, dtype=torch.float64))) == real
    assert numbering.find(sign(torch.full((8,), 1e-9, dtype=torch.float64))) is None


def test_a_value_whose_digits_are_noise_stands_for_nothing_else() -> None:
    numbering = Numbering()
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    number = numbering.number(sign(signs)._replace(noise=4.0))
    assert numbering.find(sign(torch.tensor([0.5, 1.0, -1.0, 0.1], dtype=torch.float64))) is None
    assert numbering.number(sign(signs)._replace(noise=4.0)) != number


@pytest.mark.parametrize("noises", [(1e-5, 1e-4), (1e-5, 1e-8), (1e-8, 1e-5)])
def test_the_same_contents_have_one_number_however_far_rounding_may_move_them(noises: tuple[float, float]) -> None:
    """Adam makes a step of any size of a gradient that is nothing but rounding: both sides may still end in zero."""
    numbering = Numbering()
    one, other = (numbering.number(Signature(1, 0.0, 0.0, 0.0, 0, noise)) for noise in noises)
    assert one == other
