"""Each fused kernel against the composition in float64 on the CPU, results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from torch import Tensor

from aten_dump.analysis.composed_ops import fused_ops

Case = tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gamma


def _swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _rotary(mode: str) -> Callable[..., Tensor]:
    def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if mode == "half":
            a, b = x.chunk(2, -1)
            turned = torch.cat((-b, a), -1)
        else:
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + turned * sin

    return rotary


def _attention(**how: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **how)


def _fused_attention(layout: str, heads: int, **how: Any) -> Callable[..., Tensor]:
    def attention(*qkv: Tensor) -> Tensor:
        given = [_in_layout(x, layout) for x in qkv]
        out = torch_npu.npu_fusion_attention(*given, heads, layout, scale=how.pop("scale", 16**-0.5), **how)[0]
        return _out_of_layout(out, layout, heads)

    return attention


def _in_layout(x: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return x
    x = x.transpose(1, 2)  # [batch, sequence, heads, dim]
    return {"BSND": lambda: x, "BSH": lambda: x.flatten(2), "SBH": lambda: x.flatten(2).transpose(0, 1)}[layout]()


def _out_of_layout(x: Tensor, layout: str, heads: int) -> Tensor:
    if layout == "SBH":
        x = x.transpose(0, 1)
    if layout in ("SBH", "BSH"):
        x = x.unflatten(-1, (heads, -1))
    return x if layout == "BNSD" else x.transpose(1, 2)


def _causal(device: str) -> Tensor:
    return torch.ones(8, 8, dtype=torch.bool, device=device).triu(1)


def _qkv(kv_heads: int = 4) -> list[Tensor]:
    return [_normal(2, 4, 8, 16), _normal(2, kv_heads, 8, 16), _normal(2, kv_heads, 8, 16)]


CASES: dict[str, Callable[[], Case]] = {
    "rms_norm": lambda: (lambda x, g: torch_npu.npu_rms_norm(x, g, epsilon=1e-5)[0], _rms_norm, [_normal(2, 5, 16), _normal(16)]),
    "swiglu": lambda: (torch_npu.npu_swiglu, _swiglu, [_normal(3, 5, 16)]),
    "rotary_half": lambda: (torch_npu.npu_rotary_mul, _rotary("half"), [_normal(2, 4, 8, 16), _normal(1, 1, 8, 16), _normal(1, 1, 8, 16)]),
    "rotary_interleave": lambda: (
        lambda *a: torch_npu.npu_rotary_mul(*a, rotary_mode="interleave"),
        _rotary("interleave"),
        [_normal(2, 4, 8, 16), _normal(1, 1, 8, 16), _normal(1, 1, 8, 16)],
    ),
    "gelu": lambda: (lambda x: torch_npu.npu_gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), [_normal(4, 9)]),
    "fast_gelu": lambda: (torch_npu.fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), [_normal(4, 9)]),
    "silu": lambda: (torch_npu.npu_silu, F.silu, [_normal(4, 9)]),
    "dtype_cast": lambda: (lambda x: torch_npu.npu_dtype_cast(x, torch.float32) * 2, lambda x: x * 2, [_normal(4, 9)]),
    "matmul": lambda: (torch.matmul, torch.matmul, [_normal(3, 4, 5), _normal(5)]),
    "linear": lambda: (F.linear, F.linear, [_normal(3, 4, 5), _normal(6, 5), _normal(6)]),
    "attention_BNSD": lambda: (_fused_attention("BNSD", 4), _attention(), _qkv()),
    "attention_BSH": lambda: (_fused_attention("BSH", 4), _attention(), _qkv()),
    "attention_SBH": lambda: (_fused_attention("SBH", 4), _attention(), _qkv()),
    "attention_BSND_mask": lambda: (_fused_attention("BSND", 4, atten_mask=_causal("npu")), _attention(is_causal=True), _qkv()),
    "attention_right_down": lambda: (
        _fused_attention("BNSD", 4, atten_mask=_causal("npu"), sparse_mode=3), _attention(is_causal=True), _qkv(),
    ),
    "attention_grouped": lambda: (_fused_attention("BNSD", 4), _attention(enable_gqa=True), _qkv(2)),
    "attention_grouped_SBH": lambda: (_fused_attention("SBH", 4), _attention(enable_gqa=True), _qkv(2)),
    "attention_grouped_BSH": lambda: (_fused_attention("BSH", 4), _attention(enable_gqa=True), _qkv(2)),
    "sdpa": lambda: (_attention(is_causal=True), _attention(is_causal=True), _qkv()),
}  # fmt: skip


def _run(call: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = call(*leaves)
    seed = torch.cos(torch.arange(out.numel(), dtype=torch.float32).view(out.shape)).to(out)
    out.backward(seed)
    return [x.detach().cpu().double() for x in (out, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_is_its_composition(name: str, dtype: torch.dtype) -> None:
    fused, plain, inputs = CASES[name]()
    inputs = [x.to(dtype) for x in inputs]
    expected = _run(plain, [x.double() for x in inputs])
    found = _run(fused, [x.npu() for x in inputs])
    within = 1e-4 if dtype == torch.float32 else 6e-2
    for want, have in zip(expected, found, strict=True):
        torch.testing.assert_close(have, want, rtol=within, atol=within * float(want.abs().max()))


def test_packed_sequences_are_attended_to_apart() -> None:
    lengths, heads = [3, 5], 2
    q, k, v = (torch.randn(8, heads, 16) for _ in range(3))
    ends = [3, 8]
    given = [x.npu().requires_grad_() for x in (q, k, v)]
    out = torch_npu.npu_fusion_attention(*given, heads, "TND", scale=0.25, actual_seq_qlen=ends, actual_seq_kvlen=ends)[
        0
    ]
    out.sum().backward()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    parts = [x.split(lengths) for x in leaves]
    apart = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1).unsqueeze(0) for x in three), scale=0.25)[0].transpose(0, 1)
        for three in zip(*parts, strict=True)
    ]
    torch.cat(apart).sum().backward()
    torch.testing.assert_close(out.cpu(), torch.cat(apart).detach(), rtol=1e-4, atol=1e-4)
    for have, want in zip(given, leaves, strict=True):
        torch.testing.assert_close(have.grad.cpu(), want.grad, rtol=1e-4, atol=1e-4)


def test_dropout_of_attention_is_the_same_in_backward() -> None:
    """Where everything attends to equal values, the gradient of a value tells which weights were kept."""
    q = torch.zeros(1, 1, 8, 16, device="npu", requires_grad=True)
    v = torch.eye(8, 16).expand(1, 1, 8, 16).npu().requires_grad_()
    out = torch_npu.npu_fusion_attention(q, q.detach(), v, 1, "BNSD", keep_prob=0.5)[0]
    out.sum().backward()
    kept = (out.detach()[0, 0, :, :8] > 0).float()  # [query, key]
    assert 0 < kept.sum().item() < 64
    torch.testing.assert_close(v.grad[0, 0, :, 0], kept.sum(0) / 8 / 0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.bool], ids=str)
def test_a_cast_has_the_dtype_that_was_asked_for(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.3, -2.7])
    found = torch_npu.npu_dtype_cast(x.npu(), dtype)
    assert torch.equal(found.cpu(), x.to(dtype))


def test_the_second_version_of_attention() -> None:
    q, k, v = (x.npu().requires_grad_() for x in _qkv(2))
    out = torch_npu.npu_fusion_attention_v2(q, k, v, 4, "BNSD", scale=16**-0.5)[0]
    out.sum().backward()
    leaves = [x.detach().cpu().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*leaves, scale=16**-0.5, enable_gqa=True)
    expected.sum().backward()
    torch.testing.assert_close(out.cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
    for have, want in zip((q, k, v), leaves, strict=True):
        torch.testing.assert_close(have.grad.cpu(), want.grad, rtol=1e-4, atol=1e-4)


def test_adam_w_is_that_of_torch() -> None:
    weight, grad = torch.randn(7), torch.randn(7)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    out = [weight.npu(), torch.zeros(7).npu(), torch.zeros(7).npu()]
    for step in range(3):
        parameter.grad = grad * (step + 1)
        optimizer.step()
        powers = (0.9**step, 0.99**step)
        torch_npu.npu_apply_adam_w(
            *powers, 0.1, 0.01, 0.9, 0.99, 1e-8, (grad * (step + 1)).npu(), None, False, False, out=tuple(out)
        )
    torch.testing.assert_close(out[0].cpu(), parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_mixture_of_experts() -> None:
    """Routing, permutation, grouped products and their way back, as Mixtral computes it."""
    tokens, experts, hidden, copies = 10, 4, 8, 2
    x, weights = torch.randn(tokens, hidden), torch.randn(experts, hidden, hidden)
    logits = torch.randn(tokens, experts)
    chosen, index = torch.softmax(logits, -1).topk(copies)
    leaf = x.clone().requires_grad_()
    expected = sum(chosen[:, c : c + 1] * torch.einsum("th,tho->to", leaf, weights[index[:, c]]) for c in range(copies))
    expected.sum().backward()

    probs, routed, _ = torch_npu.npu_moe_gating_top_k_softmax(logits.npu(), k=copies)
    torch.testing.assert_close(routed.cpu().long(), index)
    there = x.npu().requires_grad_()
    permuted, places = torch_npu.npu_moe_token_permute(there, routed)
    ends = torch.bincount(routed.view(-1).cpu(), minlength=experts).cumsum(0).npu()
    with torch.no_grad():
        out = torch_npu.npu_grouped_matmul([permuted], [weights.npu()], group_list=ends, group_type=0, split_item=3)[0]
    back = torch_npu.npu_moe_token_unpermute(out, places, probs=probs)
    torch.testing.assert_close(back.cpu(), expected.detach(), rtol=1e-4, atol=1e-4)

    torch_npu.npu_moe_token_unpermute(permuted, places, probs=probs).sum().backward()
    torch.testing.assert_close(
        there.grad.cpu(), torch.ones(tokens, hidden) * chosen.sum(1, keepdim=True), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", sorted(name for name in fused_ops() if not name.startswith("fsdp::")))
def test_the_schemas_that_the_analysis_has_are_those_of_the_package(name: str) -> None:
    base, _, overload = name.removeprefix("npu::").partition(".")
    assert str(fused_ops()[name]._schema) == str(getattr(getattr(torch.ops.npu, base), overload or "default")._schema)
