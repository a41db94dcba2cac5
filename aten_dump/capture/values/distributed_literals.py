"""Process groups, reduce operations, device meshes and placements as literals of an argument tree."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

import torch

from ...store.records import TREE_BYTES, TREE_DICT, TREE_LIST, TREE_OBJECT, Tree
from ...torch_names import process_group_named

_CLASSES: Final = "torch.classes."
_SAYS_NOTHING: Final = ("", "undefined", "default_pg")  # descriptions of groups to which nobody gave one
_OPTIONS: Final = ("opts", "all_reduce_opts", "reduce_opts")  # locals of torch's functions that reduce


def describe(item: Any) -> Tree | None:
    """Return an object of torch.distributed, or of TorchScript, as a tree; None for any other object."""
    if isinstance(item, torch.ScriptObject):
        return _script_object(item)
    distributed = torch.distributed
    if not distributed.is_available():
        return None
    if isinstance(item, distributed.ProcessGroup):
        return _group(item)
    if isinstance(item, (distributed.ReduceOp, distributed.ReduceOp.RedOpType)):
        return _reduce_op(item)
    meshes = sys.modules.get("torch.distributed.device_mesh")
    if meshes is not None and isinstance(item, meshes.DeviceMesh):
        return _tree_of(mesh_of(item))
    placements = sys.modules.get("torch.distributed.tensor.placement_types")
    if placements is not None and isinstance(item, placements.Placement):
        return (TREE_BYTES, repr(item))
    return None


def group_named(name: Any) -> Tree:
    """Return the process group that a functional collective names; the name itself where there is none of it."""
    if not isinstance(name, str):
        return describe(name)
    group = process_group_named(name)
    return name if group is None else _group(group)


def mesh_of(mesh: Any) -> dict[str, Any]:
    """Return a DeviceMesh as plain values: names of its dimensions, shape, and ranks in row-major order."""
    names = mesh.mesh_dim_names
    told = {"device": mesh.device_type, "dim_names": None if names is None else list(names)}
    rank_map = getattr(mesh, "_rank_map", None)
    if isinstance(rank_map, torch.Tensor) and type(rank_map) is not torch.Tensor:
        # Simulated ranks (LocalTensorMode): it computes under the program's mode alone, which ours is not in.
        return {**told, "shape": list(mesh.shape), "ranks": []}
    ranks = mesh.mesh
    return {**told, "shape": list(ranks.shape), "ranks": ranks.flatten().tolist()}


def _script_object(item: Any) -> Tree:
    full = str(item._type())
    name = full.partition(_CLASSES)[2] or full
    distributed = torch.distributed
    if name == "c10d.ProcessGroup" and hasattr(distributed.ProcessGroup, "unbox"):
        return _group(distributed.ProcessGroup.unbox(item))
    if name == "c10d.ReduceOp":
        kind = item.op() if item._has_method("op") else _asked_for()
        if kind is not None:
            return _reduce_op(kind)
    return (TREE_OBJECT, name)


def _asked_for() -> Any:
    """Return the reduction that a running function of torch.distributed asks for; None where C++ code asks.

    An older torch hands modes an object that does not show it.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.distributed.distributed_c10d":
        frame = frame.f_back
    there = frame.f_locals if frame is not None else {}
    options = next((there[name] for name in _OPTIONS if name in there), None)
    return getattr(options, "reduceOp", None)


def _reduce_op(item: Any) -> Tree:
    types = torch.distributed.ReduceOp.RedOpType
    kind = getattr(item, "op", item)
    try:
        return (TREE_BYTES, f"ReduceOp.{types(int(kind)).name}")
    except (ValueError, TypeError):
        return (TREE_BYTES, repr(kind))


def _group(group: Any) -> Tree:
    """Return what identifies a group: its name, its backend, the global ranks in it, and its maker's description."""
    try:
        ranks = list(torch.distributed.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):  # made behind the back of torch.distributed
        ranks = list(range(group.size()))
    try:
        name = group.group_name
    except RuntimeError:  # the same, and torch has more to say of it when it is used
        name = None
    told = {"group": name, "backend": group.name(), "ranks": ranks}
    description = getattr(group, "group_desc", "")
    return _tree_of(told if description in _SAYS_NOTHING else {**told, "description": description})


def _tree_of(plain: Any) -> Tree:
    if isinstance(plain, dict):
        return (TREE_DICT, *(part for key, entry in plain.items() for part in (key, _tree_of(entry))))
    return (TREE_LIST, *plain) if isinstance(plain, list) else plain
