"""Which compiled graphs ran on wrong memory: the faults of the runtime, where each kernel is right for what it reads.

Theory of operation
    Three things show it. A graph may write to memory that it made or was given, and to no other. What it writes to
    memory that it was given, and that its nodes leave alone, nobody may read afterwards. And a kernel is given the
    results of nodes: the graph is run from its recorded inputs, in float64 and in the recorded dtypes, and what a
    kernel was given, or the graph returned, is far from both. Rounding of a whole graph may be large, so that only what
    is far off counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from ...dump import Call, GraphNode, GraphStage, NodeRef, RankDump, Value
from ...errors import AtenDumpError
from ..rerun.allowed_ops import registered_op
from ..rerun.kernel_ops import placeholders_given
from .graph_values import distance, graph_calls, part_of, tensors_of, values_of
from .layer_fault import LayerFault, source_of

_FAR: Final = 0.05  # relative to the greatest element: no honest rounding
_HONEST: Final = 20.0  # times what the same graph is off in the recorded dtypes

_FOREIGN: Final = "writes to memory that its graph neither made nor was given"
_READ_LATER: Final = "writes to memory that its graph was given to read, and {} reads it afterwards"
_OTHER_INPUT: Final = "was given other memory than that of {}"
_RETURNED: Final = "was returned otherwise than the kernels make it"


def memory_faults(rank: RankDump, wrong: Container[str]) -> Iterator[LayerFault]:
    """Yield what is wrong with the memory of the graphs that ran, one fault of a graph at most.

    Args:
        rank: a step and rank.
        wrong: graphs that are known to be wrong for another reason.
    """
    last = {(stage.graph, stage.part): stage for stage in rank.kernels.stages}
    told: set[str] = set()
    for call in graph_calls(rank):
        number, part = part_of(call)
        name = f"{number}_{part}"
        if name not in wrong and number not in wrong and name not in told:
            found = next(_faults(call, name, last.get((number, part))), None)
            if found is not None:
                told.add(name)
                yield found


def _faults(graph: Call, name: str, stage: GraphStage | None) -> Iterator[LayerFault]:
    inner = [call for call in graph.children if call.kind == "aten"]
    kernel = next((call.kernel for call in inner if call.kernel is not None), None)
    nodes = kernel.graph_nodes if kernel is not None else stage.nodes if stage is not None else {}
    for call, fact in _writes(graph, inner, nodes.values()):
        yield LayerFault("runtime", call.name, name, call.where, None, fact)
    meant = _Meant(graph, nodes.values())
    for call in inner:
        for names, value in _given(call):
            error = meant.distance(names, value)
            if error:
                yield LayerFault("runtime", call.name, name, call.where, error, _OTHER_INPUT.format(" or ".join(names)))
    for node, value in _returned(graph, stage):
        error = meant.distance((node,), value)
        if error:
            yield LayerFault("runtime", node, name, source_of(nodes.get(node)), error, _RETURNED)


def _writes(graph: Call, inner: list[Call], nodes: Iterable[GraphNode]) -> Iterator[tuple[Call, str]]:
    """Yield the calls of a graph that write where they may not, and what is wrong with it."""
    given: dict[int, Value] = {value.storage: value for _, value in graph.input_values()}
    changed = _changed(graph, nodes)
    own = {*given}
    end = max((call.id for call in inner), default=graph.id)
    for call in inner:
        for _, value in call.written_values():
            if value.storage not in own:
                yield call, _FOREIGN
            elif value.storage in given and value.storage not in changed:
                later = next((reader for reader, _ in value.consumers if reader.id > end), None)
                if later is not None:
                    yield call, _READ_LATER.format(later.name)
        read = {value.storage for _, value in call.input_values()}
        own |= {value.storage for _, value in call.result_values()} - read


def _changed(graph: Call, nodes: Iterable[GraphNode]) -> set[int]:
    """Return the storages of inputs that the nodes of a graph write to, or may write to."""
    nodes = list(nodes)
    names = {name for node in nodes if _may_write(node) for name in node.reads}
    found = placeholders_given(nodes, graph)
    return {value.storage for name, value in found.items() if name in names and isinstance(value, Value)}


def _may_write(node: GraphNode) -> bool:
    op = registered_op(node.op)
    is_python = node.op.startswith("_operator.") or node.op in ("placeholder", "output")
    return not is_python and (op is None or op._schema.is_mutable)


def _given(call: Call) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Yield what a kernel reads, with the names of the nodes that may have made it."""
    for names, item in zip(call.kernel.given, call.inputs[0], strict=False) if call.kernel is not None else ():
        if names and isinstance(item, Value):
            yield names, item


def _returned(graph: Call, stage: GraphStage | None) -> Iterator[tuple[str, Value]]:
    made = graph.outputs if isinstance(graph.outputs, (list, tuple)) else (graph.outputs,)
    for item, value in zip(() if stage is None else stage.outputs, made, strict=False):
        if isinstance(item, NodeRef) and isinstance(value, Value):
            yield item.name, value


class _Meant:
    """What the nodes of a graph come to from what a call of it was given."""

    def __init__(self, graph: Call, nodes: Iterable[GraphNode]) -> None:
        self._graph = graph
        self._nodes = list(nodes)
        self._values: dict[bool, Mapping[str, Any]] = {}  # in float64, and in the recorded dtypes

    def _of(self, name: str, *, is_wide: bool) -> torch.Tensor | None:
        if is_wide not in self._values:
            self._values[is_wide] = self._evaluated(is_wide=is_wide)
        found = self._values[is_wide].get(name)
        return found.double() if isinstance(found, torch.Tensor) else None

    def _evaluated(self, *, is_wide: bool) -> Mapping[str, Any]:
        sources = tensors_of(self._nodes, self._graph, is_wide=is_wide)
        return values_of(self._nodes, sources, is_wide=is_wide)

    def distance(self, names: Iterable[str], value: Value) -> float:
        """Return how far a value is from what each of some nodes makes; 0 where rounding may explain it."""
        if not value.is_floating or value.undefined:
            return 0.0
        try:
            recorded = value.tensor().double()
        except AtenDumpError:  # its bytes were not recorded
            return 0.0
        return min((self._far(name, recorded) for name in names), default=0.0)

    def _far(self, name: str, recorded: torch.Tensor) -> float:
        want = self._of(name, is_wide=True)
        if want is None or want.numel() != recorded.numel():
            return 0.0
        error = distance(recorded.reshape(want.shape), want)
        if error <= _FAR:
            return 0.0
        plain = self._of(name, is_wide=False)
        return error if plain is not None and error > _HONEST * distance(plain, want) else 0.0
