"""References of the fused ops of NPUs, against torch's own functions and their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aten_dump.analysis.fused_references import FUSED

WIDE = torch.float64


def gradients(result: Tensor, grad: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(result, leaves, grad)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=WIDE, requires_grad=True)


def test_rms_norm() -> None:
    x, gamma = leaf(2, 3, 8), leaf(8)
    found, rstd = FUSED["npu::npu_rms_norm"](x, gamma, 1e-3)
    expected = F.rms_norm(x, (8,), gamma, 1e-3)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    mine = FUSED["npu::npu_rms_norm_backward"](grad, x.detach(), gamma.detach(), rstd.detach())
    torch.testing.assert_close(mine, gradients(expected, grad, x, gamma))


@pytest.mark.parametrize("dim", [-1, 1])
def test_swiglu(dim: int) -> None:
    x = leaf(2, 4, 6)
    gate, up = x.chunk(2, dim)
    expected = F.silu(gate) * up
    torch.testing.assert_close(FUSED["npu::npu_swiglu"](x, dim), expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(FUSED["npu::npu_swiglu_backward"](grad, x.detach(), dim), *gradients(expected, grad, x))


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_turns_pairs_by_an_angle(mode: str) -> None:
    x, angle = leaf(2, 3, 5, 8), torch.randn(1, 1, 5, 4, dtype=WIDE)
    both = angle.repeat(1, 1, 1, 2) if mode == "half" else angle.repeat_interleave(2, -1)
    r1, r2 = (table.clone().requires_grad_() for table in (both.cos(), both.sin()))
    found = FUSED["npu::npu_rotary_mul"](x, r1, r2, mode)
    pairs = torch.stack(x.chunk(2, -1) if mode == "half" else (x[..., ::2], x[..., 1::2]), -1)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    parts = found.chunk(2, -1) if mode == "half" else (found[..., ::2], found[..., 1::2])
    torch.testing.assert_close(torch.stack(parts, -1), turned)
    grad = torch.randn_like(found)
    mine = FUSED["npu::npu_rotary_mul_backward"](grad, x.detach(), r1.detach(), r2.detach(), mode)
    torch.testing.assert_close(mine, gradients(found, grad, x, r1, r2))


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(layout: str, masked: bool) -> None:
    shape = (2, 3, 5, 8) if layout == "BNSD" else (2, 5, 3, 8)
    q, k, v = leaf(*shape), leaf(*shape), leaf(*shape)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if masked else None
    scale = 1 / math.sqrt(8)
    heads = [x if layout == "BNSD" else x.transpose(1, 2) for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*heads, attn_mask=None if mask is None else ~mask, scale=scale)
    expected = expected if layout == "BNSD" else expected.transpose(1, 2)
    given = [x.detach() for x in (q, k, v)]
    found = FUSED["npu::npu_fusion_attention"](*given, 3, layout, atten_mask=mask, scale=scale)
    torch.testing.assert_close(found[0], expected)
    grad = torch.randn_like(expected)
    kept = {"softmax_max": found[1], "softmax_sum": found[2], "attention_in": found[0]}
    mine = FUSED["npu::npu_fusion_attention_grad"](*given, grad, 3, layout, atten_mask=mask, scale_value=scale, **kept)
    torch.testing.assert_close(mine[:3], gradients(expected, grad, q, k, v))


def test_causal_attention_of_torch_s_own_function() -> None:
    """What `F.scaled_dot_product_attention` runs on an NPU: a piece of a mask stands for one of any size."""
    q, k, v = leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    given = [x.detach() for x in (q, k, v)]
    piece = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    found = FUSED["npu::npu_fusion_attention_v3"](
        *given, 3, "BNSD", None, None, piece, 1 / math.sqrt(8), 1.0, 2**31 - 1, 0, 0, None, None, None, 2
    )
    torch.testing.assert_close(found[0], expected)
    assert [x.dtype for x in found[4:]] == [torch.int64, torch.int64]
    grad = torch.randn_like(expected)
    kept = {
        "softmax_max": found[1],
        "softmax_sum": found[2],
        "attention_in": found[0],
        "seed": found[4],
        "offset": found[5],
    }
    mine = FUSED["npu::npu_fusion_attention_grad_v3"](
        *given, grad, 3, "BNSD", atten_mask=piece, scale_value=1 / math.sqrt(8), next_tockens=0, sparse_mode=2, **kept
    )
    torch.testing.assert_close(mine[:3], gradients(expected, grad, q, k, v))


@pytest.mark.parametrize(
    "asked", [{"keep_prob": 0.5}, {"sparse_mode": 3}, {"prefix": [1]}, {"input_layout": "TND"}], ids=str
)
def test_what_is_not_written_is_refused(asked: dict[str, Any]) -> None:
    x = torch.randn(1, 2, 3, 4)
    layout = asked.pop("input_layout", "BNSD")
    with pytest.raises(NotImplementedError):
        FUSED["npu::npu_fusion_attention"](x, x, x, 2, layout, **asked)


@pytest.mark.parametrize("dim", [0, 1])
def test_gather_sends_gradients_back_to_where_it_read(dim: int) -> None:
    x, index = leaf(3, 4), torch.tensor([[0, 2, 0, 1], [2, 2, 1, 0]])
    expected = x.gather(dim, index)
    grad = torch.randn_like(expected)
    found = FUSED["npu::npu_gather_backward"](grad, [3, 4], dim, index, False)
    torch.testing.assert_close(found, *gradients(expected, grad, x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy(reduction: str, weighted: bool) -> None:
    x, target = leaf(3, 4), torch.rand(3, 4, dtype=WIDE)
    weights = [torch.rand(4, dtype=WIDE) if weighted else None for _ in range(2)]
    loss = F.binary_cross_entropy_with_logits(x, target, weights[0], reduction=reduction, pos_weight=weights[1])
    grad = torch.randn_like(loss)
    code = ["none", "mean", "sum"].index(reduction)
    found = FUSED["npu::npu_binary_cross_entropy_with_logits_backward"](grad, x.detach(), target, *weights, code)
    torch.testing.assert_close(found, *gradients(loss, grad, x))


def test_a_format_cast_changes_no_element() -> None:
    x = leaf(4, 6).detach().t()
    found = FUSED["npu::npu_format_cast"](x, 29)
    assert torch.equal(found, x) and found.is_contiguous() and found.data_ptr() != x.data_ptr()
