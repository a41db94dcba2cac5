"""Fused attention, and its gradient from the softmax's saved maxima and sums, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .dropout import drawn, mask_of
from .registering import kernel

_LANES = 8  # the device keeps each maximum and sum eight times


@dataclass(frozen=True)
class Problem:
    """What a call asks for, but its tensors."""

    heads: int
    layout: str
    scale: float
    keep_prob: float
    sparse_mode: int
    pre_tokens: int
    next_tokens: int

    def heads_first(self, x: Tensor, heads: int) -> Tensor:
        """[batch, heads, sequence, dim] of a tensor in the layout of the call."""
        if self.layout == "BNSD":
            return x.float()
        if self.layout in ("BSND", "TND"):
            return (x if self.layout == "BSND" else x.unsqueeze(0)).float().transpose(1, 2)
        wide = x.float().unflatten(-1, (heads, -1))
        return wide.transpose(1, 2) if self.layout == "BSH" else wide.permute(1, 2, 0, 3)

    def as_given(self, x: Tensor, like: Tensor) -> Tensor:
        if self.layout in ("BSND", "TND", "BSH"):
            x = x.transpose(1, 2)
        elif self.layout == "SBH":
            x = x.permute(2, 0, 1, 3)
        return x.reshape(like.shape).to(like.dtype)

    def kv_heads(self, query: Tensor, key: Tensor) -> int:
        if self.layout in ("BSH", "SBH"):
            return key.shape[-1] * self.heads // query.shape[-1]
        return key.shape[1 if self.layout in ("BNSD", "TND") else 2]

    def mask(self, given: Tensor | None, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """Where attention is not allowed."""
        first = {2: 1, 3: columns - rows + 1}.get(self.sparse_mode)
        if first is not None:
            return torch.ones(rows, columns, dtype=torch.bool, device=device).triu(first)
        if self.sparse_mode == 4:
            everywhere = torch.ones(rows, columns, dtype=torch.bool, device=device)
            shift = columns - rows
            return everywhere.triu(self.next_tokens + 1 + shift) | everywhere.tril(-self.pre_tokens - 1 + shift)
        return None if given is None else given.bool()


def _problem(heads: int, layout: str, options: dict[str, Any]) -> Problem:
    scale = options.get("scale", options.get("scale_value", 1.0))
    before = options.get("pre_tockens", options.get("pre_tokens", 2**31 - 1))
    after = options.get("next_tockens", options.get("next_tokens", 2**31 - 1))
    return Problem(heads, layout, scale, options.get("keep_prob", 1.0), options.get("sparse_mode", 0), before, after)


def _segments(problem: Problem, options: dict[str, Any], query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """The sequences of a packed batch; otherwise all there is."""
    if problem.layout != "TND":
        yield slice(None), slice(None)
        return
    start_q = start_k = 0
    for end_q, end_k in zip(options["actual_seq_qlen"], options["actual_seq_kvlen"], strict=True):
        yield slice(start_q, end_q), slice(start_k, end_k)
        start_q, start_k = end_q, end_k


def _scores(problem: Problem, q: Tensor, k: Tensor, pse: Tensor | None, mask: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-1, -2) * problem.scale
    if pse is not None:
        scores = scores + pse.float()
    hidden = problem.mask(mask, q.shape[-2], k.shape[-2], q.device)
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


def _spread(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _forward(problem: Problem, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], dropped: Tensor | None) -> Any:
    kv_heads = problem.kv_heads(q, k)
    wide_q = problem.heads_first(q, problem.heads)
    wide_k, wide_v = (_spread(problem.heads_first(x, kv_heads), problem.heads) for x in (k, v))
    scores = _scores(problem, wide_q, wide_k, options.get("pse"), options.get("atten_mask"))
    most = scores.amax(-1, keepdim=True)
    shifted = torch.exp(scores - torch.where(most == -torch.inf, 0.0, most))
    total = shifted.sum(-1, keepdim=True)
    weights = torch.where(total == 0, 0.0, shifted / total)
    if dropped is not None:
        weights = weights * dropped / problem.keep_prob
    like = q if problem.layout in ("BSH", "SBH") else q[..., : v.shape[-1]]
    return problem.as_given(weights @ wide_v, like), most, total


@kernel("npu::npu_fusion_attention", "npu::npu_fusion_attention_v2")
def attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *args: Any, **options: Any
) -> Any:
    names = ("pse", "padding_mask", "atten_mask", "scale", "keep_prob", "pre_tockens", "next_tockens", "inner_precise",
             "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode")  # fmt: skip
    options |= dict(zip(names, args, strict=False))
    problem = _problem(head_num, input_layout, options)
    seed, offset = drawn(query.device) if problem.keep_prob < 1 else (0, 0)
    out, most, total = [], [], []
    for rows, columns in _segments(problem, options, query, key):
        dropped = _dropped(problem, seed, offset + len(out), query[rows], key[columns])
        parts = _forward(problem, query[rows], key[columns], value[columns], options, dropped)
        for whole, part in zip((out, most, total), parts, strict=True):
            whole.append(part)
    if problem.layout == "TND":
        most, total = ([x.squeeze(0).transpose(0, 1) for x in xs] for xs in (most, total))
    joined = [xs[0] if len(xs) == 1 else torch.cat(xs) for xs in (out, most, total)]
    lanes = [x.expand(*x.shape[:-1], _LANES).contiguous() for x in joined[1:]]
    return joined[0], *lanes, query.new_empty(0), seed, offset, 0


def _dropped(problem: Problem, seed: int, offset: int, query: Tensor, key: Tensor) -> Tensor | None:
    if problem.keep_prob >= 1:
        return None
    q, k = problem.heads_first(query, problem.heads), problem.heads_first(key, problem.kv_heads(query, key))
    return mask_of(
        (q.shape[0], problem.heads, q.shape[2], k.shape[2]), problem.keep_prob, seed, offset, query.device
    ).float()


def _backward(problem: Problem, tensors: dict[str, Tensor], options: dict[str, Any], dropped: Tensor | None) -> Any:
    kv_heads = problem.kv_heads(tensors["query"], tensors["key"])
    q, dy, out = (problem.heads_first(tensors[name], problem.heads) for name in ("query", "dy", "out"))
    k, v = (_spread(problem.heads_first(tensors[name], kv_heads), problem.heads) for name in ("key", "value"))
    most, total = tensors["max"][..., :1], tensors["sum"][..., :1]
    scores = _scores(problem, q, k, options.get("pse"), options.get("atten_mask"))
    weights = torch.exp(scores - torch.where(most == -torch.inf, 0.0, most)) / torch.where(total == 0, 1.0, total)
    kept = 1.0 if dropped is None else dropped / problem.keep_prob
    d_weights = dy @ v.transpose(-1, -2) * kept
    d_scores = weights * (d_weights - (dy * out).sum(-1, keepdim=True))
    grads = [
        d_scores @ k * problem.scale,
        d_scores.transpose(-1, -2) @ q * problem.scale,
        (weights * kept).transpose(-1, -2) @ dy,
    ]
    for i in (1, 2):
        grads[i] = grads[i].unflatten(1, (kv_heads, -1)).sum(2)
    named = [problem.as_given(g, tensors[name]) for g, name in zip(grads, ("query", "key", "value"), strict=True)]
    return *named, d_scores


@kernel("npu::npu_fusion_attention_grad")
def attention_grad(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, **options: Any
) -> Any:
    problem = _problem(head_num, input_layout, options)
    grads: list[list[Tensor]] = [[], [], []]
    for number, (rows, columns) in enumerate(_segments(problem, options, query, key)):
        tensors = {"query": query[rows], "key": key[columns], "value": value[columns], "dy": dy[rows]}
        tensors |= {"out": options["attention_in"][rows]}
        for name in ("max", "sum"):
            kept = options[f"softmax_{name}"][rows]
            tensors[name] = kept.transpose(0, 1).unsqueeze(0) if problem.layout == "TND" else kept
        dropped = _dropped(
            problem, options.get("seed", 0), options.get("offset", 0) + number, query[rows], key[columns]
        )
        *parts, d_scores = _backward(problem, tensors, options, dropped)
        for whole, part in zip(grads, parts, strict=True):
            whole.append(part)
    joined = [xs[0] if len(xs) == 1 else torch.cat(xs) for xs in grads]
    pse = options.get("pse")
    d_pse = d_scores.sum_to_size(pse.shape).to(pse.dtype) if pse is not None else query.new_empty(0)
    return *joined, d_pse, query.new_empty(0)


@kernel("npu::npu_fusion_attention_grad_v2")
def attention_grad_v2(*args: Any, **options: Any) -> Any:
    """Rotary parts and a sink would have gradients too."""
    found = attention_grad(*args, **options)
    return *found, found[-1].new_empty(0), found[-1].new_empty(0)


@kernel("npu::npu_fusion_attention_v3")
def attention_v3(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *args: Any, **options: Any
) -> Any:
    *found, seed, offset, _ = attention(query, key, value, head_num, input_layout, *args, **options)
    return *found, torch.tensor(seed), torch.tensor(offset)


@kernel("npu::npu_fusion_attention_grad_v3")
def attention_grad_v3(*args: Any, seed: Tensor | None = None, offset: Tensor | None = None, **options: Any) -> Any:
    numbers = {name: int(x) for name, x in (("seed", seed), ("offset", offset)) if x is not None}
    return attention_grad(*args, **options, **numbers)
