"""Mixtures of experts: which token goes to which expert, their permutation and its gradient, and products by group.

The places of rows are as exact as integers are; what has equal numbers to choose between is not written here.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_MOST_EXPERTS: Final = 1 << 16
_BY_COLUMNS: Final = 2  # the value of `group_type` for gradients of weights
_COUNTS: Final = 1  # the value of `group_list_type` for sizes of groups; 0 is where they end
_OF_PRODUCT: Final = frozenset(("bias", "group_list", "group_list_type", "group_type", "split_item", "tuning_config"))


def permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False) -> Any:
    """Put tokens in the order of their experts; also where each of a token's copies went."""
    _refuse_padded(padded_mode)
    order = indices.reshape(-1).argsort(stable=True)
    return tokens.index_select(0, order[: num_out_tokens or None] // _copies(indices)), order.argsort().int()


def permute_grad(tokens: Tensor, grad: Tensor, indices: Tensor, places: Tensor, padded_mode: bool = False) -> Tensor:
    """The gradient of `permute`."""
    return permute_grad_v2(grad, places, tokens.shape[0], tokens.dtype, _copies(indices), padded_mode)


def permute_grad_v2(grad: Tensor, places: Tensor, *given: Any) -> Tensor:
    """Do the same without the tokens."""
    tokens, dtype, copies, *padded = given
    _refuse_padded(*padded)
    return _fetched(grad, places).view(tokens, copies, grad.shape[-1]).sum(1).to(dtype)


def unpermute(permuted: Tensor, places: Tensor, probs: Tensor | None = None, *more: Any, **options: Any) -> Tensor:
    """Bring tokens back into their order, and their copies together, weighted by `probs`."""
    _refuse_padded(*more, **options)
    back = _fetched(permuted, places).view(-1, 1 if probs is None else probs.shape[1], permuted.shape[-1])
    return (back if probs is None else back * probs.unsqueeze(-1)).sum(1).to(permuted.dtype)


def unpermute_and_kept(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Do the same; also what it keeps for its backward."""
    return unpermute(*args, **options), args[0]


def unpermute_grad(
    permuted: Tensor, grad: Tensor, places: Tensor, probs: Tensor | None = None, *more: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """The gradients of `unpermute`: to the rows and to `probs`."""
    _refuse_padded(*more, **options)
    return unpermute_grad_v2(grad, places, permuted.shape[0], permuted.dtype, probs, permuted_tokens=permuted)


def unpermute_grad_v2(grad: Tensor, places: Tensor, *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Do the same, with or without the rows."""
    names = ("rows", "dtype", "probs", "padded_mode", "restore_shape", "permuted_tokens")
    asked = dict(zip(names, given, strict=False)) | options
    _refuse_padded(asked.get("padded_mode", False), asked.get("restore_shape"))
    probs, permuted = asked.get("probs"), asked.get("permuted_tokens")
    spread = grad.unsqueeze(1).expand(-1, 1 if probs is None else probs.shape[1], -1)
    to_probs = grad.new_empty(0)
    if probs is not None and permuted is not None:
        to_probs = (spread * _fetched(permuted, places).view(spread.shape)).sum(-1).to(probs.dtype)
        spread = spread * probs.unsqueeze(-1)
    order = places.argsort()[: asked["rows"]]
    return spread.reshape(-1, grad.shape[-1]).index_select(0, order).to(asked["dtype"]), to_probs


def gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The k greatest of softmax(x): weights, experts, and the number of each copy among all."""
    weights = torch.softmax(x if x.dtype == torch.float64 else x.float(), -1)
    sorted_all = torch.softmax(x.float(), -1).sort(-1, descending=True).values[..., : k + 1]
    if bool((sorted_all[..., 1:] == sorted_all[..., :-1]).any()):
        raise NotImplementedError("equal numbers, of which a device may take any")
    chosen, experts = weights.topk(k, -1)
    if finished is not None:
        experts = torch.where(finished.unsqueeze(-1), x.shape[-1], experts)
    count = x.shape[:-1].numel()
    copies = torch.arange(count * k, dtype=torch.int32, device=x.device).view(k, count).t()
    return chosen.to(x.dtype), experts.int(), copies.reshape(experts.shape).contiguous()


def init_routing(x: Tensor, rows: Tensor, experts: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in the order of their experts, where each went, and the experts in order."""
    ordered, order = experts.reshape(-1).sort(stable=True)
    source = rows.reshape(-1).index_select(0, order)
    found = x.index_select(0, (source % x.shape[0]).long()[: active_num * experts.shape[1]])
    return found, source.argsort().int(), ordered.int()


def compute_expert_tokens(ordered: Tensor, num_expert: int) -> Tensor:
    """How many of the sorted numbers are no greater than each expert's."""
    if not 0 <= num_expert <= _MOST_EXPERTS:
        raise NotImplementedError(f"{num_expert} experts")
    experts = torch.arange(num_expert, dtype=ordered.dtype, device=ordered.device)
    return torch.searchsorted(ordered.contiguous(), experts, right=True).int()


def finalize_routing(rows: Tensor, *given: Any, **options: Any) -> Tensor:
    """Bring rows back, with the bias of their experts, weighted and added up, and add what skipped the experts."""
    names = ("skip1", "skip2", "bias", "scales", "places", "experts", "drop_pad_mode", "k")
    asked = dict(zip(names, given, strict=False)) | options
    if asked.get("drop_pad_mode"):
        raise NotImplementedError("rows that are dropped or padded")
    scales, places, bias = asked["scales"], asked["places"], asked["bias"]
    copies = 1 if scales is None else scales.shape[1]
    back = rows.index_select(0, places.long()).view(copies, -1, rows.shape[-1]).transpose(0, 1)
    if bias is not None and asked.get("experts") is not None:
        back = back + bias[asked["experts"].long()]
    summed = (back if scales is None else back * scales.unsqueeze(-1)).sum(1)
    for skip in (asked["skip1"], asked["skip2"]):
        summed = summed if skip is None else summed + skip
    return summed.to(rows.dtype)


def grouped_matmul(x: list[Tensor], weight: list[Tensor], **options: Any) -> list[Tensor]:
    """Products of groups of rows, each with its own weight; by columns, of groups of columns with groups of rows."""
    others = [name for name, item in options.items() if name not in _OF_PRODUCT and item not in (None, [], 0)]
    if others:
        raise NotImplementedError(str(others))
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    given = options.get("bias") or []
    biases: list[Any] = list(given[0]) if len(given) == 1 < len(weights) else list(given) or [None] * len(weights)
    if options.get("group_list") is None:
        return [_product(a, b, c) for a, b, c in zip(x, weights, biases, strict=True)]
    sizes = _sizes(options["group_list"], options.get("group_list_type"))
    if options.get("group_type") == _BY_COLUMNS:
        columns, rows = x[0].split(sizes, 1), weight[0].split(sizes)
        return [torch.stack([a @ b for a, b in zip(columns, rows, strict=True)])]
    groups = zip(x[0].split(sizes), weights, biases, strict=True)
    return [torch.cat([_product(a, b, c) for a, b, c in groups])]


def grouped_mm(
    one: Tensor, other: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """Torch's products of groups: of rows, of columns or of what is summed over, which end at `offs`; else a batch.

    Args:
        one: [rows, k], or [groups, rows, k].
        other: [groups, k, columns], or [k, columns].
        offs: int32[groups], where each group ends.
        bias: none is taken.
        out_dtype: of the result, except in float64.
    """
    if bias is not None:
        raise NotImplementedError("a bias")
    wanted = one.dtype if out_dtype is None or one.dtype == torch.float64 else out_dtype
    if offs is None:
        return (one @ other).to(wanted)
    sizes = _sizes(offs, None)
    grouped = one.shape[0] if other.dim() == 3 else other.shape[1] if one.dim() == 3 else one.shape[1]
    if sum(sizes) != grouped:
        raise NotImplementedError("rows of no group, which are undefined")
    if one.dim() == 2 and other.dim() == 2:
        return torch.stack([a @ b for a, b in zip(one.split(sizes, 1), other.split(sizes), strict=True)]).to(wanted)
    if one.dim() == 2:
        return torch.cat([a @ b for a, b in zip(one.split(sizes), other, strict=True)]).to(wanted)
    return torch.cat([a @ b for a, b in zip(one, other.split(sizes, 1), strict=True)], 1).to(wanted)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else x @ weight + bias.to(x.dtype)


def _sizes(groups: Any, kind: int | None) -> list[int]:
    numbers: list[int] = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if kind == _COUNTS:
        return numbers
    return [end - start for start, end in zip([0, *numbers], numbers, strict=False)]


def _copies(indices: Tensor) -> int:
    return 1 if indices.dim() == 1 else indices.shape[1]


def _fetched(rows: Tensor, places: Tensor) -> Tensor:
    """Fetch rows by place; those that were dropped are zero."""
    missing = places.shape[0] - rows.shape[0]
    rows = torch.cat((rows, rows.new_zeros(missing, rows.shape[1]))) if missing > 0 else rows
    return rows.index_select(0, places.long())


def _refuse_padded(padded_mode: bool = False, restore_shape: Any = None) -> None:
    if padded_mode or restore_shape:
        raise NotImplementedError("experts that are padded")
