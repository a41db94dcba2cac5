"""Mixtures of experts: routing, permutation of tokens, and products by group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .registering import kernel


@kernel("npu::npu_grouped_matmul", "npu::npu_grouped_matmul.List")
def grouped_matmul(x: list[Tensor], weight: list[Tensor], **options: Any) -> list[Tensor]:
    """Products of groups of rows, each with its own weight; which row is of which group only the device knows."""
    bias = options.get("bias") or [None] * len(weight)
    groups = options.get("group_list")
    if groups is None:
        return [_product(a, b, c) for a, b, c in zip(x, weight, bias, strict=True)]
    ends = groups if isinstance(groups, Tensor) else torch.tensor(groups, device=x[0].device)
    if options.get("group_list_type") == 1:
        ends = ends.cumsum(0)
    if options.get("group_type") == 2:  # groups of columns: the gradient of the weights
        return [_of_columns(x[0], weight[0], ends)]
    rows = torch.arange(x[0].shape[0], device=x[0].device)
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else weight
    biases = list(bias[0]) if len(bias) == 1 and bias[0] is not None else bias * (len(weights) // len(bias))
    out = torch.zeros(x[0].shape[0], weights[0].shape[-1], dtype=x[0].dtype, device=x[0].device)
    for number, (each, its_bias) in enumerate(zip(weights, biases, strict=True)):
        inside = rows < ends[number] if number == 0 else (rows < ends[number]) & (rows >= ends[number - 1])
        out = torch.where(inside.unsqueeze(1), _product(x[0], each, its_bias), out)
    return [out]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else x @ weight + bias.to(x.dtype)


def _of_columns(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    columns = torch.arange(x.shape[1], device=x.device)
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    inside = (columns >= starts.unsqueeze(1)) & (columns < ends.unsqueeze(1))
    return torch.stack([(x * mask) @ weight for mask in inside.to(x.dtype)])


@kernel("npu::npu_moe_token_permute")
def token_permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False) -> Any:
    """Put tokens in the order of their experts; also where each of a token's copies went."""
    copies = 1 if indices.dim() == 1 else indices.shape[1]
    order = indices.reshape(-1).sort(stable=True).indices
    return tokens.index_select(0, order[: num_out_tokens or None] // copies), order.sort().indices.int()


@kernel("npu::npu_moe_token_permute_grad")
def token_permute_grad(
    tokens: Tensor, grad: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False
) -> Tensor:
    return token_permute_grad_v2(
        grad, sorted_indices, tokens.shape[0], tokens.dtype, 1 if indices.dim() == 1 else indices.shape[1]
    )


@kernel("npu::npu_moe_token_permute_grad_v2")
def token_permute_grad_v2(
    grad: Tensor, sorted_indices: Tensor, tokens: int, dtype: torch.dtype, copies: int, padded_mode: bool = False
) -> Tensor:
    return _placed(grad, sorted_indices).view(tokens, copies, grad.shape[-1]).sum(1).to(dtype)


def _placed(rows: Tensor, places: Tensor) -> Tensor:
    """Fetch rows by place; those that were dropped are zero."""
    missing = places.shape[0] - rows.shape[0]
    if missing > 0:
        rows = torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))
    return rows.index_select(0, places.long())


@kernel("npu::_npu_moe_token_unpermute")
def token_unpermute_and_saved(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return token_unpermute(*args, **kwargs), args[0]


@kernel("npu::npu_moe_token_unpermute")
def token_unpermute(
    permuted: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
) -> Tensor:
    """Bring tokens back into their order, and their copies together weighted by `probs`."""
    copies = probs.shape[1] if probs is not None else 1
    back = _placed(permuted, sorted_indices).view(-1, copies, permuted.shape[-1])
    return (back * probs.unsqueeze(-1) if probs is not None else back).sum(1).to(permuted.dtype)


@kernel("npu::npu_moe_token_unpermute_grad")
def token_unpermute_grad(
    permuted: Tensor, grad: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return token_unpermute_grad_v2(
        grad, sorted_indices, permuted.shape[0], permuted.dtype, probs, permuted_tokens=permuted
    )


@kernel("npu::npu_moe_token_unpermute_grad_v2")
def token_unpermute_grad_v2(
    grad: Tensor, sorted_indices: Tensor, rows: int, dtype: torch.dtype, probs: Tensor | None = None,
    padded_mode: bool = False, restore_shape: Any = None, permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    copies = probs.shape[1] if probs is not None else 1
    spread = grad.unsqueeze(1).expand(-1, copies, -1)
    to_probs = grad.new_empty(0)
    if probs is not None and permuted_tokens is not None:
        to_probs = (spread * _placed(permuted_tokens, sorted_indices).view(spread.shape)).sum(-1).to(probs.dtype)
        spread = spread * probs.unsqueeze(-1)
    order = sorted_indices.long().sort().indices[:rows]
    return spread.reshape(-1, grad.shape[-1]).index_select(0, order).to(dtype), to_probs


@kernel("npu::npu_moe_gating_top_k_softmax")
def gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The k greatest of softmax(x): weights, experts, and the rows in the order of their copies."""
    weights, experts = torch.softmax(x.float(), -1).topk(k, -1)
    if finished is not None:
        experts = torch.where(finished.unsqueeze(-1), x.shape[-1], experts)
    count = x.shape[:-1].numel()
    rows = torch.arange(count * k, device=x.device, dtype=torch.int32).view(k, count).t().reshape(*x.shape[:-1], k)
    return weights.to(x.dtype), experts.int(), rows.contiguous()


@kernel("npu::npu_moe_init_routing")
def init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    experts, order = expert_idx.reshape(-1).sort(stable=True)
    source = row_idx.reshape(-1).index_select(0, order)
    expanded = x.index_select(0, (source % x.shape[0]).long()[: active_num * expert_idx.shape[1]])
    return expanded, source.long().sort().indices.int(), experts.int()


@kernel("npu::npu_moe_compute_expert_tokens")
def compute_expert_tokens(sorted_experts: Tensor, num_expert: int) -> Tensor:
    experts = torch.arange(num_expert, device=sorted_experts.device, dtype=sorted_experts.dtype)
    return (sorted_experts.unsqueeze(0) <= experts.unsqueeze(1)).sum(1).int()


@kernel("npu::npu_moe_finalize_routing")
def finalize_routing(
    rows: Tensor, skip1: Tensor | None, skip2: Tensor | None, bias: Tensor | None, scales: Tensor | None, places: Tensor,
    experts: Tensor | None, drop_pad_mode: int = 0, k: int = 1,
) -> Tensor:  # fmt: skip
    count = places.shape[0] // (scales.shape[1] if scales is not None else 1)
    copies = places.shape[0] // count
    back = rows.index_select(0, places.long()).view(copies, count, -1).transpose(0, 1)
    if bias is not None and experts is not None:
        back = back + bias[experts.long()]
    summed = (back * scales.unsqueeze(-1) if scales is not None else back).sum(1)
    for skip in (skip1, skip2):
        summed = summed if skip is None else summed + skip
    return summed.to(rows.dtype)
