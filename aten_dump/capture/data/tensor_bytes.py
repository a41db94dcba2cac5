"""Bytes of tensors: their elements in row-major order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from ...store.writing.host_bytes import memory_at
from ...torch_names import without_bits
from ..torch_internals.addresses import address_of

_INTS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


def row_major(tensor: torch.Tensor, first: int | None) -> torch.Tensor:
    """Return the raw elements of `tensor`, conj and neg bits not applied, in row-major order. Call inside `quiet()`.

    Args:
        tensor: any strided tensor.
        first: only so many elements; None for all.
    """
    tensor = without_bits(tensor)
    if first is not None and first < tensor.numel():
        if not tensor.is_contiguous():
            tensor = _leading(tensor, first)
        return tensor.reshape(-1)[:first].contiguous()
    if tensor.dtype.itemsize == 1 and not tensor.is_quantized:
        return tensor.view(torch.uint8).reshape(-1).contiguous().view(tensor.dtype)
    return tensor.contiguous().reshape(-1)


def _leading(tensor: torch.Tensor, first: int) -> torch.Tensor:
    """Cut leading dimensions so that at least the `first` elements in row-major order stay, without a copy."""
    per_row = max(1, tensor.numel() // tensor.shape[0])
    return tensor[: -(-first // per_row)]


def gathered(tensor: torch.Tensor, first: int, past: int, resolved: bool) -> torch.Tensor | None:
    """Return elements of a tensor that do not lie in a row as bytes on its device; None where all of them do.

    They are moved as integers where that can be: nothing that the device does with numbers is to change them. Call
    inside `quiet()`.

    Args:
        tensor: any strided tensor.
        first: the first of them, counted in row-major order.
        past: one past the last.
        resolved: conj and neg bits are applied.
    """
    has_bits = tensor.is_neg() or (tensor.dtype.is_complex and tensor.is_conj())
    if tensor.is_contiguous() and not (has_bits and resolved):
        return None
    if not (has_bits and resolved):
        tensor = without_bits(tensor)
        tensor = tensor.view(_INTS.get(tensor.element_size(), tensor.dtype))
    made = torch.empty(past - first, dtype=tensor.dtype, device=tensor.device)
    start = 0
    for part in _slices(tensor, first, past):
        made[start : start + part.numel()].view(part.shape).copy_(part)
        start += part.numel()
    return made.view(torch.uint8)


def _slices(tensor: torch.Tensor, first: int, past: int) -> Iterator[torch.Tensor]:
    """Yield elements of a tensor, counted in row-major order, as slices of it."""
    if past - first == tensor.numel():
        yield tensor
        return
    in_row = tensor.numel() // tensor.shape[0]
    (top, begin), (bottom, end) = divmod(first, in_row), divmod(past, in_row)
    if top == bottom:
        yield from _slices(tensor[top], begin, end)
        return
    if begin:
        yield from _slices(tensor[top], begin, in_row)
        top += 1
    if top < bottom:
        yield tensor[top:bottom]
    if end:
        yield from _slices(tensor[bottom], 0, end)


def host_bytes(tensor: torch.Tensor) -> tuple[torch.Tensor, memoryview]:
    """Return the elements of `tensor` in row-major order as bytes, with the tensor that owns them. Call inside
    `quiet()`.
    """
    flat = row_major(tensor.resolve_conj().resolve_neg(), None)
    if flat.device.type != "cpu":
        flat = flat.cpu()
    nbytes = flat.numel() * flat.element_size()
    if nbytes == 0:
        return flat, memoryview(b"")
    return flat, memory_at(address_of(flat), nbytes)


def copied_bytes(tensor: torch.Tensor) -> bytes:
    """Return a copy of what `host_bytes` returns: not compiled, this keeps the memory until it is read."""
    _owner, data = host_bytes(tensor)
    return bytes(data)
