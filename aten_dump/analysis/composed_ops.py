"""Ops that only some devices have as one op, such as NPUs or GPUs, composed of others for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..store.op_names import read_op_name
from ..torch_names import has_kernel_for
from .fused_ops import (
    attention,
    experts,
    gpu_attention,
    gradients,
    norms,
    pointwise,
    recurrent,
    sharding,
)
from .fused_ops.schemas import FusedOp

_ATTENTION: Final[dict[str, Callable[..., Any]]] = {
    "npu_fusion_attention": attention.attention,
    "npu_fusion_attention_v2": attention.attention,
    "npu_fusion_attention_v3": attention.attention_v3,
    "npu_fusion_attention_grad": attention.attention_grad,
    "npu_fusion_attention_grad_v2": attention.attention_grad_v2,
    "npu_fusion_attention_grad_v3": attention.attention_grad,
}
_EXPERTS: Final[dict[str, Callable[..., Any]]] = {
    "npu_grouped_matmul": experts.grouped_matmul,
    "npu_grouped_matmul.List": experts.grouped_matmul,
    "npu_moe_token_permute": experts.permute,
    "npu_moe_token_permute_grad": experts.permute_grad,
    "npu_moe_token_permute_grad_v2": experts.permute_grad_v2,
    "npu_moe_token_unpermute": experts.unpermute,
    "_npu_moe_token_unpermute": experts.unpermute_and_kept,
    "npu_moe_token_unpermute_grad": experts.unpermute_grad,
    "npu_moe_token_unpermute_grad_v2": experts.unpermute_grad_v2,
    "npu_moe_gating_top_k_softmax": experts.gating_top_k_softmax,
    "npu_moe_init_routing": experts.init_routing,
    "npu_moe_compute_expert_tokens": experts.compute_expert_tokens,
    "npu_moe_finalize_routing": experts.finalize_routing,
}
_NORMS: Final[dict[str, Callable[..., Any]]] = {
    "npu_rms_norm": norms.rms_norm,
    "npu_rms_norm_backward": norms.rms_norm_backward,
    "npu_add_rms_norm": norms.add_rms_norm,
    "npu_layer_norm_eval": norms.layer_norm,
    "npu_layernorm_grad": norms.layer_norm_grad,
}
_POINTWISE: Final[dict[str, Callable[..., Any]]] = {
    "npu_swiglu": pointwise.swiglu,
    "npu_swiglu_backward": pointwise.swiglu_backward,
    "npu_gelu": pointwise.gelu,
    "npu_gelu_backward": pointwise.gelu_backward,
    "fast_gelu": pointwise.fast_gelu,
    "npu_fast_gelu": pointwise.fast_gelu,
    "npu_fast_gelu_backward": pointwise.fast_gelu_backward,
    "npu_silu": pointwise.silu,
    "npu_silu_": pointwise.silu_,
    "npu_silu_backward": pointwise.silu_backward,
    "npu_mish": pointwise.mish,
    "npu_mish_backward": pointwise.mish_backward,
    "npu_rotary_mul": pointwise.rotary_mul,
    "npu_rotary_mul_backward": pointwise.rotary_mul_backward,
    "npu_apply_rotary_pos_emb": pointwise.apply_rotary_pos_emb,
    "npu_dropout_backward": pointwise.dropped,
    "npu_dropout_do_mask": pointwise.dropped_and_mask,
    "npu_format_cast": pointwise.format_cast,
    "npu_format_cast.Tensor": pointwise.format_cast,
    "_npu_format_cast": pointwise.format_cast,
    "npu_dtype_cast": pointwise.dtype_cast,
    "_npu_dtype_cast": pointwise.dtype_cast,
    "npu_dtype_cast_backward": pointwise.dtype_cast,
    "_npu_dtype_cast_backward": pointwise.dtype_cast,
}
_GRADIENTS: Final[dict[str, Callable[..., Any]]] = {
    "npu_gather_backward": gradients.gather_backward,
    "npu_binary_cross_entropy_with_logits_backward": gradients.binary_cross_entropy_backward,
    "l1_loss_backward": gradients.l1_loss_backward,
    "kl_div_backward": gradients.kl_div_backward,
    "repeat_interleave_backward_int": gradients.repeat_interleave_backward_int,
    "repeat_interleave_backward_tensor": gradients.repeat_interleave_backward_tensor,
    "npu_apply_adam_w.out": gradients.apply_adam_w,
}
FUSED: Final[dict[str, Callable[..., Any]]] = {
    f"npu::{name}": reference
    for table in (_ATTENTION, _EXPERTS, _NORMS, _POINTWISE, _GRADIENTS)
    for name, reference in table.items()
} | {
    "fsdp::all_gather_copy_in": sharding.all_gather_copy_in,
    "fsdp::split_with_sizes_copy": sharding.split_with_sizes_copy,
    "fsdp::chunk_cat": sharding.chunk_cat,
}
# Ops of torch's own that have no kernel for a CPU.
ON_GPU: Final[dict[str, Callable[..., Any]]] = {
    "aten::_scaled_dot_product_flash_attention": gpu_attention.flash,
    "aten::_scaled_dot_product_flash_attention_backward": gpu_attention.flash_backward,
    "aten::_scaled_dot_product_efficient_attention": gpu_attention.efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": gpu_attention.efficient_backward,
    "aten::_scaled_dot_product_cudnn_attention": gpu_attention.cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": gpu_attention.cudnn_backward,
    "aten::cudnn_batch_norm": norms.batch_norm,
    "aten::cudnn_batch_norm_backward": norms.batch_norm_backward,
}
# Ops of torch's own whose kernels do not take float64; what stands here does.
IN_FLOAT64: Final[dict[str, Callable[..., Any]]] = {
    "aten::mkldnn_rnn_layer": recurrent.layer,
    "aten::mkldnn_rnn_layer_backward": recurrent.layer_backward,
    "aten::_amp_foreach_non_finite_check_and_unscale_": gradients.unscale_,
    "aten::_amp_update_scale_": gradients.update_scale_,
}


def composed(op: Any, device: torch.device) -> Callable[..., Any]:
    """Return the op, or what computes the same on a device that has no kernel for it."""
    if op.name() in IN_FLOAT64 and device.type == "cpu":
        return IN_FLOAT64[op.name()]
    own = _COMPOSED.get(op.name())
    if own is not None and isinstance(op, FusedOp):
        return own
    found: Callable[..., Any] = op
    return found if own is None or device.type != "cpu" or has_kernel_for(op.name(), "CPU") else own


def has_reference(op: str) -> bool:
    """Return True if there is something here that computes what an op does, and draws no random numbers."""
    parts = read_op_name(op)
    return op in _COMPOSED or parts.without_overload in _COMPOSED


def _matmul_backward(grad: Tensor, one: Tensor, other: Tensor, mask: list[bool]) -> tuple[Tensor | None, ...]:
    return _gradients(torch.matmul, grad, (one, other), mask)


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, output_mask: list[bool]) -> tuple[Tensor | None, ...]:
    bias = weight.new_zeros(weight.shape[:1])
    return _gradients(torch.nn.functional.linear, grad, (x, weight, bias), output_mask)


def _gradients(
    forward: Callable[..., Tensor], grad: Tensor, given: tuple[Tensor, ...], mask: list[bool]
) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(given, mask, strict=True)]
        result = forward(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(result, wanted, grad) if wanted else ())
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


_COMPOSED: Final[dict[str, Callable[..., Any]]] = {
    "aten::matmul_backward": _matmul_backward,
    "aten::linear_backward": _linear_backward,
    **FUSED,
    **ON_GPU,
}
