"""Activations, rotary positions, dropout by a mask that was drawn, casts."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_FAST: Final = 1.702  # of the sigmoid that stands for the normal distribution's
_DTYPES: Final = {  # torch's own numbers of them, where a schema has an int for a dtype
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """silu(a) * b of the halves a and b of x."""
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def swiglu_backward(grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """Return the gradients to both halves."""
    gate, up = x.chunk(2, dim)
    return torch.cat((_swish_backward(grad * up, gate), grad * gate * gate.sigmoid()), dim)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """As torch has it."""
    return torch.nn.functional.gelu(x, approximate=approximate)


def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """As torch has it."""
    found: Tensor = torch.ops.aten.gelu_backward(grad, x, approximate=approximate)
    return found


def fast_gelu(x: Tensor) -> Tensor:
    """X * sigmoid(1.702 x)."""
    return x * torch.sigmoid(_FAST * x)


def fast_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient to x."""
    return _swish_backward(grad, x, _FAST)


def silu(x: Tensor) -> Tensor:
    """As torch has it."""
    return torch.nn.functional.silu(x)


def silu_(x: Tensor) -> Tensor:
    """Write it to x."""
    return torch.nn.functional.silu(x, inplace=True)


def silu_backward(grad: Tensor, x: Tensor, _: Tensor) -> Tensor:
    """From x alone: the result, which is given too, is made of it."""
    return _swish_backward(grad, x)


def _swish_backward(grad: Tensor, x: Tensor, beta: float = 1.0) -> Tensor:
    """Return the gradient to x of x * sigmoid(beta * x)."""
    sigmoid = torch.sigmoid(beta * x)
    return grad * sigmoid * (1 + beta * x * (1 - sigmoid))


def mish(x: Tensor) -> Tensor:
    """As torch has it."""
    return torch.nn.functional.mish(x)


def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient to x."""
    bent = torch.tanh(torch.nn.functional.softplus(x))
    return grad * (bent + x * x.sigmoid() * (1 - bent * bent))


def rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    """X * r1 + rotated(x) * r2."""
    if rotate is not None:
        raise NotImplementedError("rotate")
    return x * r1 + _rotated(x, rotary_mode) * r2


def rotary_mul_backward(
    grad: Tensor, x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients to x, r1 and r2."""
    to_r1 = (grad * x).sum_to_size(r1.shape)
    to_r2 = (grad * _rotated(x, rotary_mode)).sum_to_size(r2.shape)
    return grad * r1 - _rotated(grad * r2, rotary_mode), to_r1, to_r2


def apply_rotary_pos_emb(query: Tensor, key: Tensor, *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Do so to queries and keys; no layout is asked for, as the tables say which sequence they are of."""
    cos, sin, *more = given
    mode = more[1] if len(more) > 1 else options.get("rotary_mode", "half")
    return rotary_mul(query, cos, sin, mode), rotary_mul(key, cos, sin, mode)


def _rotated(x: Tensor, mode: str) -> Tensor:
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    if mode != "half":
        raise NotImplementedError(mode)
    one, other = x.chunk(2, -1)
    return torch.cat((-other, one), -1)


def dropped(x: Tensor, mask: Tensor, p: float) -> Tensor:
    """Keep what a mask of bits says, eight of them in a byte."""
    bits = torch.stack([mask.reshape(-1).bitwise_right_shift(place).bitwise_and(1) for place in range(8)], 1)
    kept = bits.reshape(-1)[: x.numel()].view(x.shape).bool()
    return torch.where(kept, x / (1 - p), 0.0) if p < 1 else torch.zeros_like(x)


def dropped_and_mask(x: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Do the same; also the mask."""
    return dropped(x, mask, p), mask


def format_cast(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """The same elements; only a device keeps them in an order of its own."""
    return x.clone(memory_format=torch.contiguous_format)


def dtype_cast(x: Tensor, dtype: Any, *_: Any) -> Tensor:
    """A copy in another dtype."""
    known = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    if known is None:
        raise NotImplementedError(f"dtype {dtype}")
    is_kept = x.dtype == torch.float64 and known.is_floating_point  # a replay in float64
    return x.clone() if is_kept else x.to(known, copy=True)
