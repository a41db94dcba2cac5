"""Attention as GPUs have it, forward and backward, of [batch, heads, sequence, dim].

Three kernels compute the same and keep the logarithm of each row's sum of exponentials in shapes of their own, which
are those of torch's meta kernels. Scores are held in float32 at least, as the kernels do; what their backward
multiplies again is rounded to the dtype of the queries before. Where there are more keys than queries, flash attention
takes the last query to see the last key, the others the first one to see the first
(`torch.nn.attention.bias.causal_lower_right`).
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

_PADDED_TO: Final = 32  # rows of what the memory-efficient kernel keeps; it fills them up with Inf


class _Asked(NamedTuple):
    """What a call asks for, but its tensors of queries, keys and values."""

    is_causal: bool  # a query sees no later key
    scale: float | None  # of the scores; None is one over the root of dim
    bias: Tensor | None = None  # which is added to the scaled scores
    is_last_aligned: bool = False  # the last query sees the last key, else the first one the first

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        scores = _wide(query) @ _wide(key).transpose(-1, -2) * self.scale_of(query)
        if self.bias is not None:
            scores = scores + self.bias
        if self.is_causal:
            later = 1 + (scores.shape[-1] - scores.shape[-2] if self.is_last_aligned else 0)
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(later)
            scores = scores.masked_fill(hidden, -math.inf)
        if bool((scores.amax(-1) == -math.inf).any()):
            raise NotImplementedError("a query that sees no key")
        return scores

    def scale_of(self, query: Tensor) -> float:
        return float(query.shape[-1]) ** -0.5 if self.scale is None else self.scale


def flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *_: Any, **options: Any
) -> tuple[Any, ...]:
    """Return the result, logsumexp, and what an attention that is packed or drops some would have beside them."""
    _check(dropout_p)
    out, logsumexp = _forward(query, key, value, _Asked(is_causal, options.get("scale"), None, True))
    return out, logsumexp, None, None, query.shape[2], key.shape[2], *_seed(), query.new_empty(0)


def efficient(*args: Any, **options: Any) -> tuple[Any, ...]:
    """Return the result and logsumexp, if that is asked for, then seed and offset."""
    out, logsumexp, is_kept = _with_bias(*args, **options)
    if not is_kept:
        return out, logsumexp[..., :0], *_seed()
    return out, torch.nn.functional.pad(logsumexp, (0, -logsumexp.shape[-1] % _PADDED_TO), value=math.inf), *_seed()


def cudnn(*args: Any, **options: Any) -> tuple[Any, ...]:
    """Return what `flash` does; logsumexp is [batch, heads, queries, 1], and None where it is not asked for."""
    out, logsumexp, is_kept = _with_bias(*args, **options)
    query, key = args[:2]
    kept = logsumexp.unsqueeze(-1) if is_kept else None
    return out, kept, None, None, query.shape[2], key.shape[2], *_seed(), None


def _with_bias(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    *others: Any,
    **options: Any,
) -> tuple[Tensor, Tensor, bool]:
    """Return the result and logsumexp, and whether that is asked for; `others` begin with dropout_p."""
    _check(others[0] if others else options.get("dropout_p", 0.0))
    is_causal = bool(others[1] if len(others) > 1 else options.get("is_causal", False))
    asked = _Asked(is_causal, options.get("scale"), attn_bias)
    return *_forward(query, key, value, asked), compute_log_sumexp


def flash_backward(*args: Any, **options: Any) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys and values."""
    grad, query, key, value, out, logsumexp, _, _, _, _, dropout_p, is_causal = args[:12]
    _check(dropout_p)
    asked = _Asked(is_causal, options.get("scale"), None, True)
    return _backward(grad, (query, key, value), (out, logsumexp), asked)[:3]


def efficient_backward(*args: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, keys and values, asked for or not, and that of the bias if it is."""
    grad, query, key, value, attn_bias, out, logsumexp, _, _, dropout_p, mask = args[:11]
    _check(dropout_p)
    is_causal = args[11] if len(args) > 11 else options.get("is_causal", False)
    asked = _Asked(is_causal, options.get("scale"), attn_bias)
    *found, to_bias = _backward(grad, (query, key, value), (out, logsumexp[..., : query.shape[2]]), asked)
    return *found, to_bias if mask[3] else None


def cudnn_backward(*args: Any, **options: Any) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys and values."""
    grad, query, key, value, out, logsumexp, _, _, attn_bias, _, _, _, _, dropout_p, is_causal = args[:15]
    _check(dropout_p)
    asked = _Asked(is_causal, options.get("scale"), attn_bias)
    return _backward(grad, (query, key, value), (out, logsumexp.reshape(logsumexp.shape[:3])), asked)[:3]


def _check(dropout_p: float) -> None:
    if dropout_p:
        raise NotImplementedError(f"dropout of {dropout_p}: a GPU draws other numbers than a CPU")


def _seed() -> tuple[Tensor, Tensor]:
    return torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _forward(query: Tensor, key: Tensor, value: Tensor, asked: _Asked) -> tuple[Tensor, Tensor]:
    """Return the result and its logsumexp, [batch, heads, queries]."""
    keys, values = (_repeated(x, query.shape[1]) for x in (key, value))
    scores = asked.scores(query, keys)
    logsumexp = scores.logsumexp(-1)
    weights = torch.exp(scores - logsumexp.unsqueeze(-1))
    return (weights @ _wide(values)).to(query.dtype), logsumexp


def _backward(
    grad: Tensor, given: tuple[Tensor, Tensor, Tensor], kept: tuple[Tensor, Tensor], asked: _Asked
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """From what the forward kept, as the kernels do: were that wrong, these gradients would be.

    Args:
        grad: of the result.
        given: queries, keys and values.
        kept: the result and its logsumexp.
        asked: as of the forward.
    """
    query, key, value = given
    keys, values = (_repeated(x, query.shape[1]) for x in (key, value))
    wide_grad, out, scale = _wide(grad), _wide(kept[0]), asked.scale_of(query)
    weights = torch.exp(asked.scores(query, keys) - kept[1].unsqueeze(-1))
    to_value = _rounded(weights, query).transpose(-1, -2) @ wide_grad
    to_scores = weights * (wide_grad @ _wide(values).transpose(-1, -2) - (wide_grad * out).sum(-1, keepdim=True))
    rounded = _rounded(to_scores, query)
    to_query = rounded @ _wide(keys) * scale
    to_key = rounded.transpose(-1, -2) @ _wide(query) * scale
    bias = asked.bias
    to_bias = None if bias is None else to_scores.sum_to_size(bias.shape).to(bias.dtype)
    return to_query.to(query.dtype), _gathered(to_key, key), _gathered(to_value, value), to_bias


def _rounded(x: Tensor, like: Tensor) -> Tensor:
    """Return it as rounded to the dtype of the queries: what the kernels multiply again is of that."""
    return _wide(x.to(like.dtype))


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Return keys or values with as many heads as queries: each is shared by heads that follow each other."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _gathered(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of keys or values from that of the repeated ones."""
    return (grad if grad.shape == x.shape else grad.unflatten(1, (x.shape[1], -1)).sum(2)).to(x.dtype)
