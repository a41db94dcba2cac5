"""Calls and values as plain records, for JSON: what `details` and `tree` say in lines."""

from __future__ import annotations

from typing import Any

from ..dump import Call, Value
from ..dump.shown.source_lines import source_lines
from ..errors import MissingDataError
from .tree import TreeLine
from .units import argument

_MOST_ELEMENTS = 64


def tree_record(line: TreeLine) -> dict[str, Any]:
    """Return a call in the tree, without its values."""
    call = line.call
    return {
        "id": call.id, "name": call.name, "depth": line.depth, "matched": line.matched,
        "parent": call.parent_id or None,
        "op": call.op, "kind": call.kind, "phase": call.phase, "module": call.module,
        "source": source_lines(call.stack), "duration_ns": call.duration_ns if call.finished else None,
        "inputs": _inputs(call), "outputs": argument(call.outputs), "mutated": list(call.mutated), "error": call.error,
    }  # fmt: skip


def call_record(call: Call) -> dict[str, Any]:
    """Return a call in full: its stack, its values with statistics, its partners."""
    record = tree_record(TreeLine(1, call, True))
    del record["depth"], record["matched"]
    forward = call.forward
    return {
        **record, "sequence_nr": call.sequence_nr, "thread": call.thread, "training": call.training,
        "grad_enabled": call.grad_enabled, "stack": [str(frame) for frame in call.stack],
        "values": [{"slot": slot, **value_record(value)} for slot, value in call.all_values()],
        "forward": None if forward is None else forward.name, "backward": [one.name for one in call.backward],
        "recomputed": [one.name for one in call.recomputed], "children": [one.name for one in call.children],
    }  # fmt: skip


def value_record(value: Value, *, elements: bool = False) -> dict[str, Any]:
    """Return a value: facts, statistics, who made and who reads it; `elements`: the first of them, where stored."""
    made = value.producer
    record = {
        "id": value.id, "dtype": value.dtype_name, "shape": list(value.shape), "stride": list(value.stride),
        "device": value.device_name, "nbytes": value.nbytes, "storage": value.storage, "version": value.version,
        "undefined": value.undefined, "requires_grad": value.requires_grad, "stats": dict(value.stats or {}) or None,
        "hash": value.hash, "made_by": None if made is None else f"{made[0].name}.{made[1]}",
        "read_by": [f"{call.name}.{slot}" for call, slot in value.consumers],
    }  # fmt: skip
    return {**record, "elements": _elements(value)} if elements else record


def _inputs(call: Call) -> list[dict[str, str]]:
    args, kwargs = call.inputs
    names = call.arguments
    slots = [(str(number), names[number] if number < len(names) else "", one) for number, one in enumerate(args)]
    slots += [(name, name, one) for name, one in kwargs.items()]
    return [{"slot": f"input.{slot}", "name": name, "value": argument(one)} for slot, name, one in slots]


def _elements(value: Value) -> list[Any] | None:
    """Return the first elements in row-major order; None where no bytes were recorded."""
    try:
        tensor = value.tensor()
    except MissingDataError:
        return None
    if tensor.is_quantized or str(tensor.layout) != "torch.strided":
        return None
    found: list[Any] = tensor.reshape(-1)[:_MOST_ELEMENTS].tolist()
    return found
