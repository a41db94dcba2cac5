"""Fused attention and its gradient, in all layouts, with fewer heads of key and value, packed or in a band."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_LANES: Final = 8  # the device keeps each maximum and sum of a softmax eight times
_FORWARD: Final = (
    "query", "key", "value", "head_num", "input_layout", "pse", "padding_mask", "atten_mask", "scale", "keep_prob",
    "pre_tockens", "next_tockens", "inner_precise", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode",
)  # fmt: skip
_BACKWARD: Final = ("query", "key", "value", "dy", "head_num", "input_layout")
_KNOWN: Final = frozenset(  # what is used, and what makes no difference to the numbers of a call without dropout
    (
        *_FORWARD[:5], "dy", "pse", "atten_mask", "scale", "scale_value", "keep_prob", "pre_tockens", "next_tockens",
        "pre_tokens", "next_tokens", "softmax_max", "softmax_sum", "attention_in", "softmax_in", "inner_precise",
        "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode", "gen_mask_parallel", "sync", "numels", "seed", "offset",
    )
)  # fmt: skip
_ALL: Final = 2**31 - 1
_LAYOUTS: Final = ("BNSD", "BSND", "BSH", "SBH", "TND")
_PACKED: Final = "TND"  # sequences of all lengths one after the other
_GIVEN, _WHOLE, _LEFT_UP, _RIGHT_DOWN, _BAND = range(5)  # values of `sparse_mode`


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a call asks for, but its tensors of queries, keys and values."""

    layout: str
    heads: int
    scale: float
    mode: int
    before: int
    after: int
    mask: Tensor | None
    bias: Tensor | None  # `pse`, which is added to the scaled scores

    def heads_of(self, x: Tensor, heads: int) -> Tensor:
        """Return a tensor of the call as [batch, heads, sequence, dim]."""
        if self.layout in ("BSH", "SBH"):
            x = x.unflatten(-1, (heads, -1))
        match self.layout:
            case "BNSD":
                return x
            case "SBH":
                return x.permute(1, 2, 0, 3)
            case "TND":
                return x.transpose(0, 1).unsqueeze(0)
        return x.transpose(1, 2)

    def as_given(self, x: Tensor) -> Tensor:
        """Return [batch, heads, sequence, dim] in the layout of the call."""
        match self.layout:
            case "BNSD":
                return x.contiguous()
            case "SBH":
                return x.permute(2, 0, 1, 3).flatten(2).contiguous()
            case "TND":
                return x.squeeze(0).transpose(0, 1).contiguous()
        x = x.transpose(1, 2)
        return (x.flatten(2) if self.layout == "BSH" else x).contiguous()

    def heads_of_keys(self, query: Tensor, key: Tensor) -> int:
        if self.layout in ("BSH", "SBH"):
            return key.shape[-1] * self.heads // query.shape[-1]
        return key.shape[2 if self.layout == "BSND" else 1]

    def hidden(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """Return where a row must not see a column; None where all see all."""
        if self.mode in (_GIVEN, _WHOLE):
            self._check_band(rows, columns, device)
            return None if self.mask is None else self.mask.bool()
        everywhere = torch.ones(rows, columns, dtype=torch.bool, device=device)
        shift = 0 if self.mode == _LEFT_UP else columns - rows
        if self.mode == _BAND:
            return everywhere.triu(self.after + 1 + shift) | everywhere.tril(-self.before - 1 + shift)
        return everywhere.triu(1 + shift)

    def _check_band(self, rows: int, columns: int, device: torch.device) -> None:
        """Refuse limits that hide more than the mask does: what then holds is not documented."""
        if self.mode == _WHOLE or self.mask is None or (self.before >= rows and self.after >= columns):
            return
        outside = torch.ones(rows, columns, dtype=torch.bool, device=device)
        outside = outside.triu(self.after + 1) | outside.tril(-self.before - 1)
        if not bool((self.mask.bool() | ~outside).all()):
            raise NotImplementedError("limits beyond the mask")


def attention(*args: Any, **options: Any) -> tuple[Any, ...]:
    """Return the result, maxima and sums of the softmax, what it kept for its backward, seed, offset and length."""
    given = dict(zip(_FORWARD, args, strict=False)) | options
    asked = _asked(given, "scale")
    parts = []
    for rows, columns in _sequences(asked, given):
        q, k, v = _queries_keys_values(asked, given, rows, columns)
        weights, most, total = _weights(_scores(asked, q, k))
        parts.append((asked.as_given(weights @ v), _kept(asked, most), _kept(asked, total)))
    out, most, total = (one[0] if len(one) == 1 else torch.cat(one) for one in zip(*parts, strict=True))
    lanes = [part.expand(*part.shape[:-1], _LANES).contiguous() for part in (most, total)]
    return out, *lanes, given["query"].new_empty(0), 0, 0, 0


def attention_v3(*args: Any, **options: Any) -> tuple[Any, ...]:
    """Do the same, with seed and offset as tensors."""
    return *attention(*args, **options)[:4], torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def attention_grad(*args: Any, **options: Any) -> tuple[Any, ...]:
    """From the maxima and sums that the forward kept, as the device does: were they wrong, these gradients would be."""
    given = dict(zip(_BACKWARD, args, strict=False)) | options
    asked = _asked(given, "scale_value")
    parts = [_gradients(asked, given, rows, columns) for rows, columns in _sequences(asked, given)]
    *found, scores = zip(*parts, strict=True)
    empty = given["query"].new_empty(0)
    to_bias = empty if asked.bias is None else scores[0].sum_to_size(asked.bias.shape)
    return *(one[0] if len(one) == 1 else torch.cat(one) for one in found), to_bias, empty


def attention_grad_v2(*args: Any, **options: Any) -> tuple[Any, ...]:
    """Do the same; rotary parts and a sink, which are refused, would have gradients too."""
    found = attention_grad(*args, **options)
    return *found, found[-1], found[-1]


def _gradients(asked: _Asked, given: dict[str, Any], rows: slice, columns: slice) -> tuple[Tensor, ...]:
    q, k, v = _queries_keys_values(asked, given, rows, columns)
    dy, out = (asked.heads_of(given[name][rows], asked.heads) for name in ("dy", "attention_in"))
    most, total = (_unkept(asked, given[f"softmax_{name}"][rows]) for name in ("max", "sum"))
    weights = torch.exp(_scores(asked, q, k) - torch.where(most == -torch.inf, 0.0, most))
    weights = weights / torch.where(total == 0, 1.0, total)
    to_scores = weights * (dy @ v.transpose(-1, -2) - (dy * out).sum(-1, keepdim=True))
    to_k, to_v = to_scores.transpose(-1, -2) @ q * asked.scale, weights.transpose(-1, -2) @ dy
    heads = asked.heads_of_keys(given["query"], given["key"])
    gathered = (x.unflatten(1, (heads, -1)).sum(2) for x in (to_k, to_v))
    return *map(asked.as_given, (to_scores @ k * asked.scale, *gathered)), to_scores


def _asked(given: dict[str, Any], scale: str) -> _Asked:
    """Return what a call asks for, and raise where that is not written here."""
    layout, mode = given["input_layout"], given.get("sparse_mode", _GIVEN)
    more = {name: item for name, item in given.items() if name not in _KNOWN}
    more |= {"pse_type": None if more.get("pse_type") == 1 else more.get("pse_type")}
    others = [name for name, item in more.items() if isinstance(item, Tensor) or item not in (None, 0, "", [])]
    is_masked_piece_by_piece = layout == _PACKED and (mode in (_GIVEN, _WHOLE) and given.get("atten_mask") is not None)
    if layout not in _LAYOUTS or mode not in range(5) or given.get("keep_prob", 1.0) < 1 or others:
        raise NotImplementedError(f"layout {layout}, mode {mode}, {others}")
    if is_masked_piece_by_piece or (layout == _PACKED and given.get("pse") is not None):
        raise NotImplementedError("packed sequences with a mask or a bias for all of them")
    before, after = (given.get(f"{name}_tockens", given.get(f"{name}_tokens", _ALL)) for name in ("pre", "next"))
    return _Asked(
        layout, given["head_num"], given.get(scale, 1.0), mode, before, after, given.get("atten_mask"), given.get("pse")
    )


def _sequences(asked: _Asked, given: dict[str, Any]) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of the sequences of a packed batch; otherwise all there is."""
    if asked.layout != _PACKED:
        yield slice(None), slice(None)
        return
    row = column = 0
    ends = given.get("actual_seq_qlen") or (), given.get("actual_seq_kvlen") or ()
    if [end[-1:] for end in map(list, ends)] != [[given["query"].shape[0]], [given["key"].shape[0]]]:
        raise NotImplementedError("packed sequences that are not all there is")
    for next_row, next_column in zip(*ends, strict=True):
        yield slice(row, next_row), slice(column, next_column)
        row, column = next_row, next_column


def _queries_keys_values(asked: _Asked, given: dict[str, Any], rows: slice, columns: slice) -> list[Tensor]:
    """Return them as [batch, heads, sequence, dim], with as many heads each."""
    heads = asked.heads_of_keys(given["query"], given["key"])
    q = asked.heads_of(given["query"][rows], asked.heads)
    keys = (asked.heads_of(given[name][columns], heads) for name in ("key", "value"))
    return [q, *(x if heads == asked.heads else x.repeat_interleave(asked.heads // heads, 1) for x in keys)]


def _scores(asked: _Asked, q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * asked.scale
    scores = scores if asked.bias is None else scores + asked.bias
    hidden = asked.hidden(scores.shape[-2], scores.shape[-1], scores.device)
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


def _weights(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the softmax, its maxima and its sums; a row that sees nothing has no weights."""
    most = scores.amax(-1, keepdim=True)
    shifted = torch.exp(scores - torch.where(most == -torch.inf, 0.0, most))
    total = shifted.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, shifted / total), most, total


def _kept(asked: _Asked, x: Tensor) -> Tensor:
    """Return maxima or sums as they are kept: [batch, heads, sequence, 1], or [all sequences, heads, 1]."""
    return x.squeeze(0).transpose(0, 1) if asked.layout == _PACKED else x


def _unkept(asked: _Asked, x: Tensor) -> Tensor:
    return (x.transpose(0, 1).unsqueeze(0) if asked.layout == _PACKED else x)[..., :1]
