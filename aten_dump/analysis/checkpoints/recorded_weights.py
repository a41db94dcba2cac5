"""The weights that a recorded step reads, by name.

Theory of operation
    A dump names parameters where they got gradients. Others are named after the module that reads them first:
    ``layers.0.attn.weight``. A weight comes from outside the step and requires a gradient, or is what a layer is always
    given as its weight. Of a call the tensor with the most dimensions is the weight, the next one the bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...dump import Call, RankDump, Value
from ..flow.data_flow import DataFlow
from ..flow.leaves import leaf_gradients, named_leaves

# Layers, and which of their arguments is data.
_LAYERS: Final = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "embedding", "layer_norm", "rms_norm", "group_norm"), 0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "batch_norm"), 0),
    "addmm": 1,
}
_STATISTICS: Final = {"input.1": "running_mean", "input.2": "running_var"}  # of batch_norm


def recorded_weights(rank: RankDump) -> dict[str, Value]:
    """Return the weights of a step whose bytes were recorded, as they were when first read."""
    flow = DataFlow(rank, "aten")
    leaves = named_leaves(flow, leaf_gradients(flow))
    found = {name: leaf for name, leaf in leaves.items() if leaf.has_data}
    known = {value.record.place for value in found.values()}
    for call in rank.calls.filter(kind="api", phase="forward"):
        roles = ["weight", "bias"]
        for slot, value in sorted(_read_by(call), key=lambda item: -len(item[1].shape)):
            role = _STATISTICS.get(slot) if call.api == "batch_norm" else None
            role = role or (roles.pop(0) if roles else "weight")
            if value.record.place not in known:
                known.add(value.record.place)
                found[_free_name(found, f"{call.module}.{role}".lstrip("."))] = value
    return found


def _read_by(call: Call) -> Iterator[tuple[str, Value]]:
    """Yield what a call reads that may be a weight."""
    data = _LAYERS.get(call.api)
    for slot, value in call.input_values():
        if not value.has_data or value.undefined or value.producer is not None:
            continue
        if value.requires_grad or (data is not None and slot != f"input.{data}"):
            yield slot, value


def _free_name(taken: dict[str, Value], name: str) -> str:
    number, free = 1, name
    while free in taken:
        number, free = number + 1, f"{name}.{number}"
    return free
