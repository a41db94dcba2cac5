"""``--to apex``: the HDF5 file of apex's HookerAndDumper, which recorded with hooks on modules.

A group for each call of a child of the model in execution order: ``000_Linear`` with ``feat_input0`` and
``feat_output``, then, in the order of the backward pass, groups with ``grad_output0`` and ``grad_input0``. None is an
empty dataset. As there, the model itself and modules deeper in it are left out: in a ResNet, ``018_BatchNorm2d`` is the
backward of its first norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...dump import Call, Value
from ...export.chosen_calls import ChosenCalls, require
from ...export.formats.to_hdf5 import group_of, put_array
from ...export.values.linked_files import without_nul


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write the file."""
    require("h5py", "hdf5")
    import h5py

    with h5py.File(out, "w") as file:
        for rank in chosen.each_rank():
            root = group_of(file, chosen, rank)
            count = 0
            for call in chosen.calls(rank):
                if call.kind != "module" or call.phase not in ("forward", "backward") or not is_child(call):
                    continue
                write_call(root.create_group(f"{count:03d}_{call.op.rpartition('.')[2]}"), call, chosen)
                count += 1


def is_child(call: Call) -> bool:
    """Return True if a module's call is that of a direct child of the model."""
    forward = call if call.phase == "forward" else call.forward
    return forward is None or (forward.module != "" and "." not in forward.module)


def write_call(group: Any, call: Call, chosen: ChosenCalls) -> None:
    """Write what a module's call, or its backward, was given and gave."""
    group.attrs["call"] = without_nul(call.name)
    given, made = ("grad_output", "grad_input") if call.phase == "backward" else ("feat_input", "feat_output")
    args, _ = call.inputs
    _write_items(group, given, tuple(args), chosen)
    _write_items(group, made, call.outputs, chosen)


def _write_items(group: Any, name: str, items: Any, chosen: ChosenCalls) -> None:
    """Write a tensor under `name`, those of a tuple or list under the name and their number."""
    if isinstance(items, list | tuple):
        for number, item in enumerate(items):
            _write_items(group, f"{name}{number}", item, chosen)
    elif items is None:
        group.create_dataset(name, shape=(0,), dtype="f")
    elif isinstance(items, dict):
        for key, item in items.items():
            _write_items(group, f"{name}_{key}", item, chosen)
    elif isinstance(items, Value):
        for _, value in chosen.tensors([(name, items)]):
            put_array(group, name, value)
