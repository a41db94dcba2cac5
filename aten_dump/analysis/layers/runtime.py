"""Graphs that returned something else than their nodes make, though each kernel is right: they were given other memory.

Theory of operation
    The last graph is run from the recorded inputs, in float64 and in the recorded dtypes. What was returned is far from
    both where a kernel was given a wrong buffer, or one that was written over before it was read. Rounding of a whole
    graph may be large, so that only what is far off counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

import torch

from ...dump import Call, GraphStage, NodeRef, RankDump, Value
from ...errors import AtenDumpError
from .compiled_graphs import graph_calls, inputs_of, part_of
from .graph_values import distance, values_of
from .layer_fault import LayerFault, source_of

_FAR: Final = 0.05  # relative to the greatest element: no honest rounding
_HONEST: Final = 20.0  # times what the same graph is off in the recorded dtypes


def memory_faults(rank: RankDump, wrong: Container[str]) -> Iterator[LayerFault]:
    """Yield the graphs that returned something else than they compute.

    Args:
        rank: a step and rank.
        wrong: graphs that are known to be wrong for another reason.
    """
    last = {(stage.graph, stage.part): stage for stage in rank.kernels.stages}
    for call in graph_calls(rank):
        number, part = part_of(call)
        stage = last.get((number, part))
        if stage is not None and f"{number}_{part}" not in wrong and number not in wrong:
            found = _far_off(stage, call)
            if found is not None:
                name, error = found
                yield LayerFault("runtime", name, f"{number}_{part}", source_of(stage.nodes.get(name)), error)


def _far_off(stage: GraphStage, call: Call) -> tuple[str, float] | None:
    """Return the node of the first output that is far from what the graph computes, and how far."""
    meant = values_of(stage.nodes.values(), inputs_of(stage, call, is_wide=True), is_wide=True)
    returned = call.outputs if isinstance(call.outputs, (list, tuple)) else (call.outputs,)
    honest: dict[str, object] | None = None
    for item, value in zip(stage.outputs, returned, strict=False):
        if not isinstance(item, NodeRef) or not isinstance(value, Value) or not value.is_floating or value.undefined:
            continue
        recorded, want = _recorded(value), meant.get(item.name)
        error = distance(recorded, want)
        if error > _FAR and isinstance(want, torch.Tensor):
            if honest is None:
                honest = values_of(stage.nodes.values(), inputs_of(stage, call, is_wide=False), is_wide=False)
            plain = honest.get(item.name)
            known = plain.double() if isinstance(plain, torch.Tensor) else None
            if known is not None and error > _HONEST * distance(known, want):
                return item.name, error
    return None


def _recorded(value: Value) -> torch.Tensor | None:
    try:
        return value.tensor().double()
    except AtenDumpError:
        return None
