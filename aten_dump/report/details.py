"""One call, or one value, in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..dump import Call, Value
from ..dump.optimizer_groups import optimizer_groups
from ..errors import MissingDataError
from ..torch_names import with_numbers
from .units import argument, duration_text, format_bytes, format_number, tensor_type

_MAX_PARTNERS = 20


def call_details(call: Call) -> Iterator[str]:
    """Yield the lines of one call: facts, source, inputs, outputs, writes, partners, neighbours."""
    yield call.name
    yield from _facts(call)
    yield from _optimizers(call)
    yield from _stack(call)
    yield from _arguments(call)
    yield from _written(call)
    yield from _graph(call)
    yield from _partners("forward", [call.forward] if call.forward is not None else [])
    yield from _partners("backward", call.backward)
    yield from _partners("recomputed by", call.recomputed)
    yield from _partners("children", call.children)


def _facts(call: Call) -> Iterator[str]:
    facts = {
        "op": call.op,
        "kind": call.kind,
        "phase": call.phase,
        "mode": _mode(call),
        "module": call.module or None,
        "call id": call.id,
        "parent": None if call.parent is None else call.parent.name,
        "sequence_nr": call.sequence_nr,
        "thread": call.thread,
        "duration": duration_text(call) or None if call.finished else "unknown: the call was cut short",
        "error": call.error,
    }
    for name, fact in facts.items():
        if fact is not None:
            yield f"  {name:<12} {fact}"


def _optimizers(call: Call) -> Iterator[str]:
    """Yield what the optimizers of a call in an optimizer's step were set to."""
    if call.phase == "optimizer":
        groups = optimizer_groups(call.rank.tables.optimizer_groups, call.record.start_ns)
        for group in groups[:_MAX_PARTNERS]:
            yield f"  {'optimizer':<12} {group}"
        if len(groups) > _MAX_PARTNERS:
            yield f"  ... and {len(groups) - _MAX_PARTNERS} more groups"


def _mode(call: Call) -> str | None:
    words = {True: ("training", "grad"), False: ("evaluation", "no grad")}
    known = [(call.training, 0), (call.grad_enabled, 1)]
    return ", ".join(words[fact][at] for fact, at in known if fact is not None) or None


def _stack(call: Call) -> Iterator[str]:
    stack = call.stack
    if stack:
        yield "source, innermost first (> marks your code)"
    for frame in stack:
        yield f"  {'>' if frame.user else ' '} {frame}"


def _arguments(call: Call) -> Iterator[str]:
    args, kwargs = call.inputs
    yield "inputs"
    names = call.arguments
    for number, arg in enumerate(args):
        name = f"{number} {names[number]}" if number < len(names) else str(number)
        yield f"  {name:<12} {argument(arg)}"
    for name, arg in kwargs.items():
        yield f"  {name:<12} {argument(arg)}"
    yield from _values(call.input_values(), with_producer=True)
    yield "outputs"
    yield f"  {argument(call.outputs)}"
    yield from _values(call.output_values(), with_producer=False)


def _written(call: Call) -> Iterator[str]:
    if call.mutated:
        yield f"written in place: {', '.join(call.mutated)}"
        yield from _values(call.written_values(), with_producer=False)


def _graph(call: Call) -> Iterator[str]:
    """Yield what a kernel that a compiler generated computes, op by op."""
    kernel = call.kernel
    if kernel is None:
        return
    yield f"computes {len(kernel.nodes)} nodes of graph {kernel.graph}"
    for node in kernel.nodes:
        made = "" if node.shape is None else f" {node.dtype}[{', '.join(map(str, node.shape))}]"
        line = next((f"  {frame.file}:{frame.line}" for frame in node.stack if frame.user), "")
        yield f"  {node.name} = {node.op}({', '.join(node.reads)}){made}{line}"


def _values(found: Iterable[tuple[str, Value]], *, with_producer: bool) -> Iterator[str]:
    for slot, value in found:
        yield f"  {slot}: {_value_facts(value)}"
        if value.stats:
            yield "    " + "  ".join(f"{name} {format_number(number)}" for name, number in value.stats.items())
        if value.hash:
            yield f"    hash {value.hash}"
        if with_producer:
            made = value.producer
            yield f"    made by {_place(*made)}" if made else "    created before this step"
        else:
            yield from _consumers(value)


def _value_facts(value: Value) -> str:
    grad = ", requires grad" if value.requires_grad else ""
    return (
        f"{tensor_type(value)} stride {list(value.stride)}, {value.device_name}, {format_bytes(value.nbytes)}, "
        f"value {value.id}, storage {value.storage} version {value.version}{grad}"
    )


def _consumers(value: Value) -> Iterator[str]:
    found = value.consumers
    for call, slot in found[:_MAX_PARTNERS]:
        yield f"    read by {_place(call, slot)}"
    if len(found) > _MAX_PARTNERS:
        yield f"    ... and {len(found) - _MAX_PARTNERS} more"


def _place(call: Call, slot: str) -> str:
    return f"{call.name}.{slot}"


def _partners(title: str, calls: list[Call]) -> Iterator[str]:
    if not calls:
        return
    yield title
    for call in calls[:_MAX_PARTNERS]:
        yield f"  {call.name}"
    if len(calls) > _MAX_PARTNERS:
        yield f"  ... and {len(calls) - _MAX_PARTNERS} more"


def value_details(name: str, value: Value) -> Iterator[str]:
    """Yield the lines of one value: facts, statistics, who made and who reads it, its first elements."""
    yield name
    yield from _values([("value", value)], with_producer=True)
    yield from _consumers(value)
    try:
        yield f"  {with_numbers(value.tensor())}"
    except MissingDataError as error:
        yield f"  {error}"
