"""Tensors made of other tensors: what a DTensor, or an AsyncCollectiveTensor, is on this rank.

Such a tensor has no bytes of its own: its value names the value of the tensor it stands on, as ``local``, and a
DTensor's the mesh and the placements too. It is the same value as long as that tensor is, so writes need no count of
their own.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...torch_names import async_collective_tensor
from ..torch_internals.quiet import quiet, without_torch_functions
from .distributed_literals import mesh_of

Described = tuple[torch.Tensor, dict[str, Any], tuple[Any, ...]]  # its tensor, entries of Value.extra, identity
_meshes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


def describe_subclass(kind: type) -> Callable[[torch.Tensor], Described] | None:
    """Return what describes tensors of this class; None for a class that is not known."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and issubclass(kind, tensors.DTensor):
        return _dtensor
    waiting = async_collective_tensor()
    if waiting is not None and issubclass(kind, waiting):
        return lambda tensor: (tensor.elem, {}, ())  # type: ignore[attr-defined]
    return None


def _dtensor(tensor: Any) -> Described:
    spec = tensor._spec
    with without_torch_functions():  # the first hash of a mesh reads a tensor of it
        mesh = _meshes.get(spec.mesh)
    if mesh is None:
        with quiet():
            mesh = _meshes[spec.mesh] = mesh_of(spec.mesh)
    placements = [repr(p) for p in spec.placements]
    return tensor._local_tensor, {"mesh": mesh, "placements": placements}, (spec.mesh, tuple(placements))
