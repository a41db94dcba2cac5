"""Ops of torch's own that have no kernel for a CPU, or none there that takes float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from . import experts, gpu_attention, gradients, norms, recurrent
from .fused_op import References


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


REFERENCES: Final = References(
    {
        "aten::matmul_backward": _matmul_backward,
        "aten::linear_backward": _linear_backward,
        "aten::_scaled_dot_product_flash_attention": gpu_attention.flash,
        "aten::_scaled_dot_product_flash_attention_backward": gpu_attention.flash_backward,
        "aten::_scaled_dot_product_efficient_attention": gpu_attention.efficient,
        "aten::_scaled_dot_product_efficient_attention_backward": gpu_attention.efficient_backward,
        "aten::_scaled_dot_product_cudnn_attention": gpu_attention.cudnn,
        "aten::_scaled_dot_product_cudnn_attention_backward": gpu_attention.cudnn_backward,
        "aten::cudnn_batch_norm": norms.batch_norm,
        "aten::cudnn_batch_norm_backward": norms.batch_norm_backward,
    },
    in_float64={
        "aten::_grouped_mm": experts.grouped_mm,
        "aten::mkldnn_rnn_layer": recurrent.layer,
        "aten::mkldnn_rnn_layer_backward": recurrent.layer_backward,
        "aten::_amp_foreach_non_finite_check_and_unscale_": gradients.unscale_,
        "aten::_amp_update_scale_": gradients.update_scale_,
    },
)
