"""``--to hdf5``: one file, a group for each call, a dataset for each value, linked from all calls that have it.

``Aten.addmm.3.forward/input.1`` of one step and rank; under ``step0/rank0/`` where there are several. What numpy has no
dtype for is stored wider; the attribute ``dtype`` has the dtype it was.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from ...dump import RankDump, Value
from ..chosen_calls import ChosenCalls, require, slots_of
from ..values.arrays import as_array
from ..values.linked_files import one_name, without_nul


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write the file."""
    require("h5py", "hdf5")
    import h5py

    with h5py.File(out, "w") as file:
        for rank in chosen.each_rank():
            root = group_of(file, chosen, rank)
            written: dict[int, str] = {}  # by value id: the name of its dataset
            for call in chosen.calls(rank):
                name = one_name(call.name)
                group = root.create_group(name if name not in root else f"{name}.{call.id}")
                facts = {"op": call.op, "kind": call.kind, "phase": call.phase, "module": call.module}
                group.attrs.update({key: without_nul(text) for key, text in facts.items()} | {"id": call.id})
                for slot, value in chosen.tensors(slots_of(call)):
                    put(group, slot, value, written)


def group_of(file: Any, chosen: ChosenCalls, rank: RankDump) -> Any:
    """Return the group of a step and rank: the root, where it is the only one."""
    return file.create_group(f"step{rank.step}/rank{rank.rank}") if chosen.several else file


def put(group: Any, name: str, value: Value, written: dict[int, str]) -> None:
    """Write a value as a dataset; under further names, of other calls too, it is a link to the first."""
    if value.id in written:
        group[one_name(name)] = group.file[written[value.id]]
        return
    dataset = put_array(group, one_name(name), value)
    dataset.attrs["dtype"] = value.dtype_name
    written[value.id] = dataset.name


def put_array(group: Any, name: str, value: Value) -> Any:
    """Write the elements of a value as a dataset, a block at a time, and return it."""
    blocks = value.blocks()
    index, first = next(blocks)
    array = as_array(first)
    if not index:
        return group.create_dataset(name, data=array)
    dataset = group.create_dataset(name, shape=tuple(value.shape), dtype=array.dtype)
    for place, block in chain([(index, first)], blocks):
        dataset[place] = as_array(block)
    return dataset
