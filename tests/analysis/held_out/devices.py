"""Other devices, standing below the recorder: honest ones that add in another order, and spoilt ones.

A device is a `TorchDispatchMode` entered around the recording. An honest one computes sums, products, norms and attention
by other arithmetic of at least the same accuracy; `spoil` changes what one call of one op returns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Change = Callable[..., Any]  # (func, args, kwargs, result) -> result
Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Spoil:
    """The `number`-th call of `op` (its name without namespace and overload) is changed."""

    op: str
    number: int
    change: Change

    @property
    def call(self) -> str:
        return f"Aten.{self.op}.{self.number}."


class Device(TorchDispatchMode):
    """Runs `kernels` in place of torch's own, by base name of the op."""

    def __init__(self, kernels: dict[str, Kernel] | None = None, spoil: Spoil | None = None) -> None:
        super().__init__()
        self.kernels, self.spoil = kernels or {}, spoil
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition("::")[2].partition(".")[0]
        number = self.count[name]
        self.count[name] += 1
        kernel = self.kernels.get(name)
        spoilt = self.spoil is not None and (self.spoil.op, self.spoil.number) == (name, number)
        if spoilt:
            assert self.spoil is not None
            return self.spoil.change(func, args, kwargs)
        result = func(*args, **kwargs)
        if kernel is not None:
            _fill(result, kernel(func, *args, **kwargs))
        return result


def _fill(result: Any, other: Any) -> None:
    """Write another kernel's numbers into what torch made, whose dtypes and strides are right."""
    ours = result if isinstance(result, (list, tuple)) else [result]
    theirs = other if isinstance(other, (list, tuple)) else [other]
    for one, two in zip(ours, theirs, strict=True):
        if isinstance(one, Tensor) and isinstance(two, Tensor) and one.numel():
            one.copy_(two)


# -- splits: sums in parts, from the end, in float32 -----------------------------------------------------------------


def _up(item: Any) -> Any:
    if isinstance(item, Tensor) and item.dtype in (torch.bfloat16, torch.float16):
        return item.float()
    return item


def _product(a: Tensor, b: Tensor, keep: Callable[[Tensor], Tensor] = lambda t: t) -> Tensor:
    a, b = _up(a), _up(b)
    size = a.shape[-1]
    edges = sorted({0, size * 2 // 7, size * 5 // 8, size}, reverse=True)
    parts = [keep(a[..., j:i] @ b[..., j:i, :]) for i, j in pairwise(edges)]
    total = parts[0]
    for part in parts[1:]:
        total = keep(total + part)
    return total


def _mm(func: Any, a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b)


def _addmm(func: Any, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * _up(c) + alpha * _product(a, b)


def _convolution(func: Any, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    if rest[-1] != 1 or x.shape[1] < 2:
        return func(_up(x), _up(w), _up(bias), *rest)
    half = x.shape[1] // 2
    x, w = _up(x), _up(w)
    return func(x[:, half:], w[:, half:], None, *rest) + func(x[:, :half], w[:, :half], _up(bias), *rest)


def _convolution_backward(func: Any, grad: Tensor, x: Tensor, w: Tensor, *rest: Any) -> Any:
    grad, x, w = _up(grad), _up(x), _up(w)
    halves = [func(g, y, w, *rest) for g, y in zip(grad.chunk(2), x.chunk(2), strict=True)]
    if len(halves) == 1:
        return halves[0]
    one, two = halves
    inputs = torch.cat([one[0], two[0]]) if one[0] is not None else None
    return inputs, *(None if b is None else b + a for a, b in zip(one[1:], two[1:], strict=True))


def _sum(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if not x.dtype.is_floating_point:
        return func(x, *args, **kwargs)
    if func.name() not in ("aten::sum", "aten::mean"):
        return _sum_dim(func, x, *args, **kwargs)
    return func(_up(x).flip(list(range(x.dim()))), *args, **{k: v for k, v in kwargs.items() if k != "dtype"})


def _sum_dim(func: Any, x: Tensor, dim: Any, *args: Any, **kwargs: Any) -> Tensor:
    return func(_up(x).flip(list(dim)), dim, *args, **{k: v for k, v in kwargs.items() if k != "dtype"})


def _softmax(func: Any, x: Tensor, dim: int, half: bool) -> Tensor:
    x = _up(x)
    e = torch.exp2((x - x.amax(dim, keepdim=True)) * math.log2(math.e))
    return e / e.flip(dim).sum(dim, keepdim=True)


def _softmax_backward(func: Any, grad: Tensor, out: Tensor, dim: int, dtype: Any) -> Tensor:
    grad, out = _up(grad), _up(out)
    return out * grad - out * (out * grad).flip(dim).sum(dim, keepdim=True)


def _log_softmax(func: Any, x: Tensor, dim: int, half: bool) -> Tensor:
    x = _up(x)
    x = x - x.amax(dim, keepdim=True)
    return x - torch.exp2(x * math.log2(math.e)).flip(dim).sum(dim, keepdim=True).log()


def _layer_norm(func: Any, x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> Any:
    dims = list(range(-len(shape), 0))
    x = _up(x).flip(dims)
    mean = x.mean(dims, keepdim=True)
    rstd = ((x - mean) ** 2).mean(dims, keepdim=True).add(eps).sqrt().reciprocal()
    out = ((x - mean) * rstd).flip(dims)
    out = out if w is None else out * _up(w)
    return out if b is None else out + _up(b), mean, rstd


def _layer_norm_backward(
    func: Any, grad: Tensor, x: Tensor, shape: Any, mean: Any, rstd: Any, w: Any, b: Any, mask: Any
) -> Any:
    grad, x, mean, rstd, w, b = map(_up, (grad, x, mean, rstd, w, b))
    rows = [
        func(g, y, shape, m, r, w, b, mask)
        for g, y, m, r in zip(*(t.split(3) for t in (grad, x, mean, rstd)), strict=True)
    ]
    first = torch.cat([row[0] for row in rows]) if mask[0] else None
    return first, *(sum(row[n] for row in reversed(rows)) if mask[n] else None for n in (1, 2))


def _attention(
    func: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    q, k, v = _up(q), _up(k), _up(v)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = _product(q, k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
    if attn_mask is not None:
        scores = scores + _up(attn_mask)
    return _product(torch.softmax(scores, -1), v), scores.logsumexp(-1)


def _embedding_backward(func: Any, grad: Tensor, at: Tensor, count: int, padding: int, scale: bool) -> Tensor:
    rows = _up(grad).reshape(-1, grad.shape[-1])
    at = at.reshape(-1)
    rows = rows.masked_fill((at == padding)[:, None], 0.0)
    return torch.zeros(count, rows.shape[-1]).index_add_(0, at.flip(0), rows.flip(0))


def _batch_norm_backward(func: Any, grad: Tensor, x: Tensor, *rest: Any) -> Any:
    first, *others = func(_up(grad).flip(0), _up(x).flip(0), *map(_up, rest))
    return first.flip(0), *others


SPLIT: dict[str, Kernel] = {
    "mm": _mm, "bmm": _mm, "addmm": _addmm, "convolution": _convolution, "convolution_backward": _convolution_backward,
    "sum": _sum, "mean": _sum, "_softmax": _softmax, "_softmax_backward_data": _softmax_backward, "_log_softmax": _log_softmax,
    "native_layer_norm": _layer_norm, "native_layer_norm_backward": _layer_norm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention, "embedding_dense_backward": _embedding_backward,
    "native_batch_norm_backward": _batch_norm_backward,
}  # fmt: skip


# -- precise: float64, rounded once --------------------------------------------------------------------------------------


def _precise(func: Any, *args: Any, **kwargs: Any) -> Any:
    def wide(item: Any) -> Any:
        if isinstance(item, Tensor) and item.dtype.is_floating_point:
            return item.double()
        if isinstance(item, list):
            return [wide(entry) for entry in item]
        return torch.float64 if isinstance(item, torch.dtype) and item.is_floating_point else item

    given = [wide(item) for item in args]
    if func.name() in ("aten::_softmax", "aten::_log_softmax"):
        given[2] = False
    return func(*given, **{name: wide(item) for name, item in kwargs.items()})


_PRECISE = (
    "mm bmm addmm convolution convolution_backward sum mean _softmax _log_softmax _softmax_backward_data "
    "_log_softmax_backward_data native_layer_norm native_layer_norm_backward gelu gelu_backward silu silu_backward tanh exp rsqrt "
    "sigmoid cos sin pow mul div tanh_backward sigmoid_backward _fused_rms_norm native_batch_norm_backward "
    "embedding_dense_backward nll_loss_forward sqrt rsub _foreach_mul _foreach_sqrt _foreach_div _foreach_norm"
)
PRECISE: dict[str, Kernel] = dict.fromkeys(_PRECISE.split(), _precise)


# -- halves: partial products rounded to the dtype, as a split-k kernel with a reduction in half precision ---------------


def _half_mm(func: Any, a: Tensor, b: Tensor) -> Tensor:
    return _halved(a, b)


def _half_addmm(func: Any, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * _up(c) + alpha * _up(_halved(a, b))


def _halved(a: Tensor, b: Tensor) -> Tensor:
    half = a.shape[-1] // 2
    parts = (a[..., :half], b[..., :half, :]), (a[..., half:], b[..., half:, :])
    one, two = ((_up(x) @ _up(y)).to(a.dtype) for x, y in parts)
    return one + two


HALVES: dict[str, Kernel] = {"mm": _half_mm, "bmm": _half_mm, "addmm": _half_addmm}
KERNELS: dict[str, dict[str, Kernel]] = {"split": SPLIT, "precise": PRECISE, "halves": SPLIT | HALVES, "torch": {}}


# -- what a spoilt kernel does -------------------------------------------------------------------------------------------


def _tensors(result: Any) -> list[Tensor]:
    items = result if isinstance(result, (list, tuple)) else [result]
    return [item for item in items if isinstance(item, Tensor) and item.dtype.is_floating_point and item.numel()]


def scaled(factor: float, output: int = 0) -> Change:
    def change(func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        tensor = _written(func, args, result)[output]
        tensor.copy_(tensor.double() * factor)
        return result

    return change


def _written(func: Any, args: Any, result: Any) -> list[Tensor]:
    return _tensors(args[0]) if func._schema.is_mutable and not _tensors(result) else _tensors(result)


def element(value: float, output: int = 0) -> Change:
    """One element, the one of the median size, is another."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        tensor = _written(func, args, result)[output]
        flat = tensor.detach().float().abs().reshape(-1)
        at = int(flat.sort().indices[flat.numel() * 2 // 3])
        place = []
        for size in reversed(tensor.shape):
            place.append(at % size)
            at //= size
        tensor[tuple(reversed(place))] = value
        return result

    return change


def swapped(func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    tensor = _written(func, args, result)[0]
    tensor.copy_(tensor[[1, 0, *range(2, tensor.shape[0])]].clone())
    return result


def tail(func: Any, args: Any, kwargs: Any) -> Any:
    """A product that leaves out the last term."""
    a, b = args[-2:]
    return func(*args[:-2], a[..., :-1], b[..., :-1, :], **kwargs)


def coarse(func: Any, args: Any, kwargs: Any) -> Any:
    """A kernel that computes in bfloat16 what was asked for in float32."""
    result = func(*args, **kwargs)
    tensor = _written(func, args, result)[0]
    tensor.copy_(tensor.bfloat16())
    return result


def unwritten(position: int) -> Change:
    """A kernel that leaves an argument as it was that it should write."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        before = args[position].clone()
        result = func(*args, **kwargs)
        args[position].copy_(before)
        return result

    return change
