"""What the fused ops of NPUs compute, after their documentation, in the dtype they are given: for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

_LANES: Final = 8  # the device keeps each maximum and sum of a softmax eight times
_HEADS_FIRST: Final = {"BNSD": False, "BSND": True}  # layout -> heads and sequence are to be swapped
_ATTENTION: Final = (
    "query", "key", "value", "head_num", "input_layout", "pse", "padding_mask", "atten_mask", "scale", "keep_prob",
    "pre_tockens", "next_tockens", "inner_precise", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode",
)  # fmt: skip
_ATTENTION_GRAD: Final = ("query", "key", "value", "dy", "head_num", "input_layout")
_KNOWN: Final = frozenset(  # what is used, and what makes no difference to the numbers of a call without dropout
    (
        *_ATTENTION_GRAD, "atten_mask", "scale", "scale_value", "keep_prob", "pre_tockens", "next_tockens",
        "softmax_max", "softmax_sum", "attention_in", "softmax_in", "inner_precise", "gen_mask_parallel", "sync",
        "numels", "seed", "offset",
    )
)  # fmt: skip
_ALL: Final = 2**31 - 1
_MEAN: Final = 1  # reduction of a loss: 0 none, 1 mean, 2 sum
_CAUSAL: Final = 2  # the value of `sparse_mode` with which no row sees columns beyond its own number


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(_normed(x, gamma), keepdim=True) + epsilon)
    return x * rstd * gamma, rstd


def _rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    normed, scaled = x * rstd, dy * gamma
    dx = (scaled - normed * (scaled * normed).mean(_normed(x, gamma), keepdim=True)) * rstd
    return dx, (dy * normed).sum_to_size(gamma.shape)


def _normed(x: Tensor, gamma: Tensor) -> list[int]:
    return list(range(x.dim() - gamma.dim(), x.dim()))


def _swiglu(x: Tensor, dim: int = -1) -> Tensor:
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def _swiglu_backward(grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    gate, up = x.chunk(2, dim)
    sigmoid = gate.sigmoid()
    return torch.cat((grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid), dim)


def _rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    if rotate is not None:
        raise NotImplementedError("rotate")
    return x * r1 + _rotated(x, rotary_mode) * r2


def _rotary_mul_backward(
    grad: Tensor, x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    to_r1 = (grad * x).sum_to_size(r1.shape)
    to_r2 = (grad * _rotated(x, rotary_mode)).sum_to_size(r2.shape)
    return grad * r1 - _rotated(grad * r2, rotary_mode), to_r1, to_r2


def _rotated(x: Tensor, mode: str) -> Tensor:
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    if mode != "half":
        raise NotImplementedError(mode)
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), -1)


def _attention(*args: Any, **options: Any) -> tuple[Any, ...]:
    given = dict(zip(_ATTENTION, args, strict=False)) | options
    layout, mask, scale = _asked(given, "scale")
    q, k, v = (_heads(given[name], layout) for name in ("query", "key", "value"))
    weights, most, total = _weights(q, k, mask, scale)
    lanes = [part.expand(*part.shape[:-1], _LANES).contiguous() for part in (most, total)]
    return _heads(weights @ v, layout).contiguous(), *lanes, q.new_empty(0), 0, 0, 0


def _attention_v3(*args: Any, **options: Any) -> tuple[Any, ...]:
    return *_attention(*args, **options)[:4], torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _attention_grad(*args: Any, **options: Any) -> tuple[Any, ...]:
    """From the maxima and sums that the forward kept, as the device does: were they wrong, these gradients would be."""
    given = dict(zip(_ATTENTION_GRAD, args, strict=False)) | options
    layout, mask, scale = _asked(given, "scale_value")
    q, k, v, dy, out = (_heads(given[name], layout) for name in ("query", "key", "value", "dy", "attention_in"))
    weights = torch.exp(_scores(q, k, mask, scale) - given["softmax_max"][..., :1]) / given["softmax_sum"][..., :1]
    to_scores = weights * (dy @ v.transpose(-1, -2) - (dy * out).sum(-1, keepdim=True)) * scale
    found = (to_scores @ k, to_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ dy)
    empty = q.new_empty(0)
    return *(_heads(tensor, layout).contiguous() for tensor in found), empty, empty


def _asked(given: dict[str, Any], scale: str) -> tuple[str, Tensor | None, float]:
    """Return layout, mask and scale of a call, and raise where it asks for what is not written here."""
    layout, is_causal = given["input_layout"], given.get("sparse_mode") == _CAUSAL
    more = {name: item for name, item in given.items() if name not in _KNOWN}
    others = [name for name, item in more.items() if isinstance(item, Tensor) or item not in (None, 0, "", [])]
    others = [name for name in others if not (is_causal and name == "sparse_mode")]
    limits = [given.get(name, _ALL) for name in ("pre_tockens", "next_tockens") if not is_causal]
    if layout not in _HEADS_FIRST or given.get("keep_prob", 1.0) < 1 or others or min(limits, default=_ALL) < _ALL:
        raise NotImplementedError(f"layout {layout}, {others}")
    mask = given.get("atten_mask")
    if is_causal:  # the mask that is given is a piece of one, and the same for all lengths
        rows, columns = (_heads(given[name], layout).shape[-2] for name in ("query", "key"))
        mask = torch.ones(rows, columns, dtype=torch.bool, device=given["query"].device).triu(1)
    return layout, mask, given.get(scale, 1.0)


def _heads(x: Tensor, layout: str) -> Tensor:
    return x.transpose(1, 2) if _HEADS_FIRST[layout] else x


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = q @ k.transpose(-1, -2) * scale
    return scores if mask is None else scores.masked_fill(mask.bool(), -torch.inf)


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(q, k, mask, scale)
    most = scores.amax(-1, keepdim=True)
    shifted = torch.exp(scores - most)
    total = shifted.sum(-1, keepdim=True)
    return shifted / total, most, total


def _gather_backward(grad: Tensor, size: list[int], dim: int, index: Tensor, sparse_grad: bool) -> Tensor:
    return grad.new_zeros(size).scatter_add(dim, index, grad)


def _binary_cross_entropy_backward(grad: Tensor, x: Tensor, target: Tensor, *how: Any) -> Tensor:
    weight, pos_weight, reduction = how
    of_ones = target if pos_weight is None else pos_weight * target
    found = ((of_ones + 1 - target) * x.sigmoid() - of_ones) * grad
    found = found if weight is None else found * weight
    return found / x.numel() if reduction == _MEAN else found


def _format_cast(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """The same elements; only a device keeps them in an order of its own."""
    return x.clone(memory_format=torch.contiguous_format)


FUSED: Final[dict[str, Callable[..., Any]]] = {
    "npu::npu_rms_norm": _rms_norm,
    "npu::npu_rms_norm_backward": _rms_norm_backward,
    "npu::npu_swiglu": _swiglu,
    "npu::npu_swiglu_backward": _swiglu_backward,
    "npu::npu_rotary_mul": _rotary_mul,
    "npu::npu_rotary_mul_backward": _rotary_mul_backward,
    "npu::npu_gather_backward": _gather_backward,
    "npu::npu_binary_cross_entropy_with_logits_backward": _binary_cross_entropy_backward,
    "npu::npu_fusion_attention": _attention,
    "npu::npu_fusion_attention_grad": _attention_grad,
    "npu::npu_format_cast": _format_cast,
    "npu::npu_fusion_attention_v3": _attention_v3,
    "npu::npu_fusion_attention_grad_v3": _attention_grad,
}
