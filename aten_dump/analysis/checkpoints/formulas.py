"""What holds nothing learned: masks, positions and other tensors that a formula makes."""

from __future__ import annotations

from typing import Final

import torch

from .stored_tensors import StoredTensor

_MOST: Final = 1 << 26  # elements
_LEAST: Final = 4  # elements that a sequence is known by
_RATIO: Final = 1e-2  # a sequence in bfloat16 is as exact


def formula_of(stored: StoredTensor) -> str:
    """Return what a tensor is made by, such as ``a causal mask``; "" if it may be learned."""
    if not 0 < stored.numel <= _MOST:
        return "no elements" if stored.numel == 0 else ""
    tensor = stored.tensor()
    if tensor.is_complex():
        return ""
    flat = tensor.reshape(-1)
    first = flat[0]
    if bool((flat == first).all()):
        return "all zeros" if not bool(first) else "" if tensor.is_floating_point() else "one number"
    if not tensor.is_floating_point() and bool((flat == torch.arange(flat.numel())).all()):
        return "positions 0, 1, 2, ..."
    square = tensor.squeeze()
    if square.ndim == 2 and square.shape[0] == square.shape[1] and _is_causal(square):
        return "a causal mask"
    return "frequencies of positions" if flat.numel() >= _LEAST and _is_geometric(flat) else ""


def _is_causal(square: torch.Tensor) -> bool:
    lower = torch.ones(square.shape, dtype=torch.bool).tril()
    return all(bool((square[part] == square[part][0]).all()) for part in (lower, ~lower))


def _is_geometric(flat: torch.Tensor) -> bool:
    found = flat.to(torch.float64)
    if not bool((found > 0).all()):
        return False
    ratios = found[1:] / found[:-1]
    return bool((ratios < 1).all()) and bool(((ratios - ratios[0]).abs() <= _RATIO * ratios[0]).all())
