"""The calls of compiled graphs in a step, and what they were given."""

from __future__ import annotations

from typing import Any, Final

from ...dump import Call, GraphStage, RankDump, Value
from ...errors import AtenDumpError
from ..rerun.shared_memory import wide

_GRAPH: Final = "inductor.graph:"  # how the op of a call of a compiled graph begins


def graph_calls(rank: RankDump) -> list[Call]:
    """Return the calls of compiled graphs, in execution order."""
    if not any(op.op.startswith(_GRAPH) for op in rank.tables.ops.records()):
        return []
    return [call for call in rank.calls if call.op.startswith(_GRAPH)]


def part_of(call: Call) -> tuple[str, str]:
    """Return the number of a captured graph and which part of it a call runs, ``("0", "forward")``."""
    number, _, part = call.op.removeprefix(_GRAPH).partition("_")
    return number, part.partition("_")[0]


def inputs_of(stage: GraphStage, call: Call, *, is_wide: bool) -> dict[str, Any]:
    """Return what the placeholders of a graph were given, by name, as far as it was recorded.

    Args:
        stage: of the graph that `call` runs.
        call: of a compiled graph.
        is_wide: floating numbers in float64.
    """
    names = [node.name for node in stage.nodes.values() if node.op == "placeholder"]
    args = call.inputs[0]
    given = args[0] if args and isinstance(args[0], (list, tuple)) else ()
    found: dict[str, Any] = {}
    for name, item in zip(names, given if len(given) == len(names) else (), strict=False):
        if not isinstance(item, Value):
            found[name] = item
        elif not item.undefined:
            try:
                tensor = item.tensor()
            except AtenDumpError:  # its bytes were not recorded
                continue
            found[name] = tensor.to(wide(tensor.dtype)) if is_wide else tensor
    return found
