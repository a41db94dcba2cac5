"""Recorded tensors in float64, and how the contents of one are laid into another."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...dump import Value
from ...errors import ReplayError
from .shared_memory import Surroundings, tensors_of, wide


def start_tensors(values: Iterable[Value]) -> dict[int, torch.Tensor]:
    """Return recorded values in float64, by id; those of one moment share memory as they did.

    Raises:
        ReplayError, MissingDataError: one cannot be read.
    """
    given = list(values)
    alone = [value for value in given if value.composed or not value.storage]
    sharing = [value for value in given if not value.composed and value.storage]
    found = tensors_of(sharing, Surroundings(cast=True))
    for value in alone:
        tensor = value.tensor()
        found[value.id] = tensor.to(wide(tensor.dtype))
    return found


def laid(contents: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return `target` with other elements: itself if it is strided (it may be expanded), else a tensor of its layout.

    Raises:
        ReplayError: the shapes are not the same, or the elements cannot be had in that layout.
    """
    if contents.shape != target.shape:
        if contents.numel() != target.numel() or contents.layout is not torch.strided:
            raise ReplayError(f"a tensor {list(contents.shape)} stands for one of shape {list(target.shape)}")
        contents = contents.reshape(target.shape)  # random numbers that were drawn into another shape
    if target.layout is not torch.strided:
        return _in_layout(contents, target.layout)
    kept = tuple(slice(0, 1) if step == 0 else slice(None) for step in target.stride())
    target[kept].copy_(contents.to_dense()[kept])
    return target


def _in_layout(contents: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    if contents.layout is layout:
        return contents.clone()
    try:
        return contents.to_dense().to_sparse(layout=layout)
    except (RuntimeError, ValueError) as error:  # a blocked one, or one with too many dimensions
        raise ReplayError(f"a tensor of layout {contents.layout} stands for one of {layout}: {error}") from error
