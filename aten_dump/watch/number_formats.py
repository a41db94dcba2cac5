"""What a tensor would lose in a format of fewer bits: shares of elements and of blocks, and the scales.

Theory of operation
    Elements are compared with a format's limits in float32; nothing is converted, so that formats can be asked about
    that the device does not have. Results are numbers on the device: nobody waits for them.

    float16, bfloat16   as they are.
    float8_*            scaled by largest / amax of the tensor, as recipes with current scaling do. A tensor that
                        is in float8 already is taken as it is.
    mx*                 OCP MX: blocks of 32 along the last dimension, a scale that is a power of two,
                        2 ** (floor(log2(amax)) - exponent of the largest number).
    nvfp4               blocks of 16; the scale amax / 6 is itself rounded to float8_e4m3fn, under a scale of the
                        tensor.

    ================  ============================================================================================
    underflow         share of elements that are not 0 and below the smallest normal number: they lose digits
    flushed           share of elements that are not 0 and would become 0
    overflow          share of elements above the largest number (of float8: of a tensor that is in it, at it)
    saturated_blocks  share of blocks whose largest element is clipped by more than rounding
    flushed_blocks    share of blocks that are not 0 and would become 0 as a whole
    scale             of the tensor, for float8
    scale_min, _max   smallest and largest scale, of blocks that are not 0
    ================  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch.nn.functional import pad

from ..capture.data.statistics.on_device import MOST_ELEMENTS, pieces

Scaling = str  # "none", "tensor", "power" or "nvfp4"
_E4M3_LARGEST: Final = 448.0


class Format(NamedTuple):
    """The numbers of a format, and how it is scaled."""

    largest: float
    clipped: float  # what is above loses more than rounding
    normal: float  # the smallest normal number
    subnormal: float  # the smallest number
    scaling: Scaling = "none"
    block: int = 0


def _of(dtype: torch.dtype, scaling: Scaling = "none", block: int = 0) -> Format:
    info = torch.finfo(dtype)
    digits = 2.0 if dtype is torch.float8_e5m2 else 3.0  # bits of the mantissa; used of float8 alone
    spacing = 2.0 ** (torch.tensor(info.max).log2().floor().item() - digits)
    # e4m3fn has a NaN where the largest mantissa would be.
    clipped = info.max + spacing / 2 if info.bits == 8 else info.max
    return Format(info.max, clipped, info.tiny, info.tiny * info.eps, scaling, block)


FORMATS: Final[dict[str, Format]] = {
    "float16": _of(torch.float16),
    "bfloat16": _of(torch.bfloat16),
    "float8_e4m3fn": _of(torch.float8_e4m3fn, "tensor"),
    "float8_e5m2": _of(torch.float8_e5m2, "tensor"),
    "mxfp8_e4m3": _of(torch.float8_e4m3fn, "power", 32),
    "mxfp8_e5m2": _of(torch.float8_e5m2, "power", 32),
    "mxfp4": Format(6.0, 7.0, 1.0, 0.5, "power", 32),
    "nvfp4": Format(6.0, 7.0, 1.0, 0.5, "nvfp4", 16),
}
OWN: Final = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
}


class Lost(NamedTuple):
    """What a tensor would lose in a format; numbers are 0-dimensional tensors on its device."""

    shares: dict[str, tuple[torch.Tensor, int]]  # how many, of how many
    ends: dict[str, tuple[torch.Tensor, torch.Tensor]]  # the smallest and the greatest


def lost_in(tensor: torch.Tensor, name: str) -> Lost:
    """Return what a floating tensor that is not empty would lose in the format `name`. Call inside `quiet()`."""
    found = FORMATS[name]
    return _in_blocks(tensor, name, found) if found.block else _in_elements(tensor, name, found)


def _in_elements(tensor: torch.Tensor, name: str, found: Format) -> Lost:
    is_own = OWN.get(tensor.dtype) == name
    scale: torch.Tensor | None = None
    limit = found.largest
    if found.scaling == "tensor" and not is_own:
        scale, limit = found.largest / _greatest(tensor), found.clipped
    totals: dict[str, torch.Tensor] = {}
    for piece in pieces(tensor, MOST_ELEMENTS):
        size = _wide(piece).abs()
        if scale is not None:
            size = size * scale
        above = size >= limit if is_own and torch.finfo(tensor.dtype).bits == 8 else size > limit
        is_some = size > 0
        counts = {
            "underflow": is_some & (size < found.normal),
            "flushed": is_some & (size <= found.subnormal / 2),
            "overflow": above & ~torch.isnan(size),
        }
        for number, mask in counts.items():
            totals[number] = totals[number] + mask.sum() if number in totals else mask.sum()
    if is_own:
        del totals["flushed"]  # it cannot be seen any more
    shares = {f"{number}.{name}": (total, tensor.numel()) for number, total in totals.items()}
    return Lost(shares, {} if scale is None else {f"scale.{name}": (scale, scale)})


def _in_blocks(tensor: torch.Tensor, name: str, found: Format) -> Lost:
    of_tensor = _greatest(tensor) / (found.largest * _E4M3_LARGEST)
    totals: dict[str, torch.Tensor] = {}
    low = high = None
    count = 0
    for size in _blocks(tensor, found.block):
        greatest = size.amax(1, keepdim=True)
        scale = _power_of_two(greatest, found) if found.scaling == "power" else _nvfp4(greatest, of_tensor, found)
        is_gone = scale == 0
        scaled = size / torch.where(is_gone, 1, scale)
        flushed = (size > 0) & (is_gone | (scaled <= found.subnormal / 2))
        is_some = greatest > 0
        counts = {
            "flushed": flushed,
            "saturated_blocks": ~is_gone & (scaled.amax(1, keepdim=True) > found.clipped),
            "flushed_blocks": is_some & (flushed | (size == 0)).all(1, keepdim=True),
        }
        for number, mask in counts.items():
            totals[number] = totals[number] + mask.sum() if number in totals else mask.sum()
        least = torch.where(is_some, scale, torch.inf).min()
        most = torch.where(is_some, scale, 0).max()
        low = least if low is None else torch.minimum(low, least)
        high = most if high is None else torch.maximum(high, most)
        count += size.size(0)
    of = {"flushed": tensor.numel()}
    shares = {f"{number}.{name}": (total, of.get(number, count)) for number, total in totals.items()}
    return Lost(shares, {f"scales.{name}": (low, high)} if low is not None and high is not None else {})


def _greatest(tensor: torch.Tensor) -> torch.Tensor:
    parts = [_wide(piece).abs().amax() for piece in pieces(tensor, MOST_ELEMENTS)]
    return torch.stack(parts).amax()


def _wide(piece: torch.Tensor) -> torch.Tensor:
    return piece if piece.dtype in (torch.float32, torch.float64) else piece.float()


def _blocks(tensor: torch.Tensor, length: int) -> Iterator[torch.Tensor]:
    """Yield the absolute values in blocks along the last dimension, f32[blocks, length], rows filled with zeros."""
    rows = tensor.reshape(-1, tensor.size(-1) if tensor.dim() else 1)
    each = max(1, MOST_ELEMENTS // rows.size(1))
    for some in rows.split(each):
        size = _wide(some).abs()
        yield pad(size, (0, -size.size(1) % length)).reshape(-1, length)


def _power_of_two(greatest: torch.Tensor, found: Format) -> torch.Tensor:
    """Return the scale of a block as OCP MX has it: a power of two from 2**-127 on."""
    exponent = torch.frexp(greatest).exponent - torch.frexp(torch.tensor(found.largest)).exponent.item()
    return torch.ldexp(torch.ones_like(greatest), exponent.clamp(min=-127))


def _nvfp4(greatest: torch.Tensor, of_tensor: torch.Tensor, found: Format) -> torch.Tensor:
    scale = greatest / found.largest / torch.where(of_tensor > 0, of_tensor, 1)
    return scale.clamp(max=_E4M3_LARGEST).to(torch.float8_e4m3fn).to(greatest.dtype) * of_tensor
