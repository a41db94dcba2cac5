"""References of activations, rotary positions, dropout and casts, against torch's own and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aten_dump.references import pointwise

from .leaves import WIDE, gradients, leaf


@pytest.mark.parametrize("dim", [-1, 1])
def test_swiglu(dim: int) -> None:
    x = leaf(2, 4, 6)
    gate, up = x.chunk(2, dim)
    expected = F.silu(gate) * up
    torch.testing.assert_close(pointwise.swiglu(x, dim), expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(pointwise.swiglu_backward(grad, x.detach(), dim), *gradients(expected, grad, x))


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_turns_pairs_by_an_angle(mode: str) -> None:
    x, angle = leaf(2, 3, 5, 8), torch.randn(1, 1, 5, 4, dtype=WIDE)
    both = angle.repeat(1, 1, 1, 2) if mode == "half" else angle.repeat_interleave(2, -1)
    r1, r2 = (table.clone().requires_grad_() for table in (both.cos(), both.sin()))
    found = pointwise.rotary_mul(x, r1, r2, mode)
    pairs = torch.stack(x.chunk(2, -1) if mode == "half" else (x[..., ::2], x[..., 1::2]), -1)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    parts = found.chunk(2, -1) if mode == "half" else (found[..., ::2], found[..., 1::2])
    torch.testing.assert_close(torch.stack(parts, -1), turned)
    grad = torch.randn_like(found)
    mine = pointwise.rotary_mul_backward(grad, x.detach(), r1.detach(), r2.detach(), mode)
    torch.testing.assert_close(mine, gradients(found, grad, x, r1, r2))


def test_rotary_of_queries_and_keys() -> None:
    q, k, cos, sin = (torch.randn(2, 3, 1, 8) for _ in range(4))
    found = pointwise.apply_rotary_pos_emb(q, k, cos, sin, "BSND", "interleave")
    assert all(
        torch.equal(a, pointwise.rotary_mul(x, cos, sin, "interleave")) for a, x in zip(found, (q, k), strict=True)
    )


Activation = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (pointwise.gelu, pointwise.gelu_backward, F.gelu),
        (pointwise.fast_gelu, pointwise.fast_gelu_backward, lambda x: x * (1.702 * x).sigmoid()),
        (pointwise.silu, lambda grad, x: pointwise.silu_backward(grad, x, x), F.silu),
        (pointwise.mish, pointwise.mish_backward, F.mish),
    ],
    ids=["gelu", "fast_gelu", "silu", "mish"],
)
def test_activations(forward: Activation, backward: Callable[..., Tensor], expected: Activation) -> None:
    x = leaf(4, 9)
    wanted, grad = expected(x), torch.randn(4, 9, dtype=WIDE)
    torch.testing.assert_close(forward(x.detach()), wanted.detach())
    torch.testing.assert_close(backward(grad, x.detach()), *gradients(wanted, grad, x))


def test_in_place() -> None:
    x = torch.randn(4)
    expected = F.silu(x)
    assert pointwise.silu_(x) is x and torch.equal(x, expected)


def test_dropout_by_a_mask_of_bits() -> None:
    x, mask = torch.randn(2, 5), torch.tensor([0b10011010, 0b10], dtype=torch.uint8)
    kept = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 1, 0, 1]])
    assert torch.equal(pointwise.dropped(x, mask, 0.5), x * kept * 2)
    assert not pointwise.dropped(x, mask, 1.0).any()
    assert pointwise.dropped_and_mask(x, mask, 0.5)[1] is mask


def test_a_format_cast_changes_no_element() -> None:
    x = leaf(4, 6).detach().t()
    found = pointwise.format_cast(x, 29)
    assert torch.equal(found, x) and found.is_contiguous() and found.data_ptr() != x.data_ptr()


def test_casts() -> None:
    x = torch.randn(3)
    assert pointwise.dtype_cast(x, torch.bfloat16).dtype == pointwise.dtype_cast(x, 15).dtype == torch.bfloat16
    assert torch.equal(pointwise.dtype_cast(x.double(), torch.bfloat16), x.double()), "a replay in float64 stays there"
    assert pointwise.dtype_cast(x.double(), torch.int32).dtype == torch.int32
    with pytest.raises(NotImplementedError):
        pointwise.dtype_cast(x, 99)
