"""Bytes of tensors: their elements in row-major order."""

from __future__ import annotations

import ctypes

import torch

from ...torch_names import conj_view, neg_view


def row_major(tensor: torch.Tensor, first: int | None) -> torch.Tensor:
    """Return the raw elements of `tensor`, conj and neg bits not applied, in row-major order. Call inside `quiet()`.

    Args:
        tensor: any strided tensor.
        first: only so many elements; None for all.
    """
    if tensor.dtype.is_complex and tensor.is_conj():
        tensor = conj_view(tensor)
    if tensor.is_neg():
        tensor = neg_view(tensor)
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
    return flat, memoryview((ctypes.c_char * nbytes).from_address(flat.data_ptr())).cast("B")
