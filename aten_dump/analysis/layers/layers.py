"""Which layer of a compiler lied: each graph is evaluated in float64 as it was captured, and after each pass.

Theory of operation
    A compiler turns a program into a graph, ops into simpler ones (decompositions), the graph into others (passes) and
    that into kernels. Each must compute what the one before does. All are run from what the compiled graph was given in
    the step: an op beside the nodes that stand for it, the outputs of the captured graph beside those after
    each pass. The first that differ name the layer. Kernels are judged by `rerun`, against the last graph. Where all
    that is right, the memory that kernels were given may still be wrong (`memory.py`): the runtime's fault.
    Both graphs run in float64, so that rounding has no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from ...dump import Call, GraphNode, GraphStage, NodeRef, RankDump
from .graph_values import distance, graph_calls, part_of, result_of, taken, tensors_of, values_of
from .layer_fault import Layer, LayerFault, source_of
from .memory import memory_faults

_JOINT: Final = "joint"
_UNFIT: Final = math.inf  # the error of a graph that cannot be run
_PARTS: Final = (_JOINT, "forward", "backward", "inference")


def layer_faults(rank: RankDump, wrong_kernels: Sequence[tuple[Call, float]] = ()) -> list[LayerFault]:
    """Return which layers made another function, of the graphs that a step was the first to run.

    A graph has one fault at most: what comes after the first layer that is wrong starts from something wrong.

    Args:
        rank: a step and rank with the bytes of its tensors.
        wrong_kernels: calls of kernels that are wrong for their own inputs, and how far off; of any graph.
    """
    stages: dict[str, list[GraphStage]] = {}
    for stage in rank.kernels.stages:
        stages.setdefault(stage.graph, []).append(stage)
    calls: dict[str, dict[str, Call]] = {}
    for call in graph_calls(rank):
        number, part = part_of(call)
        calls.setdefault(number, {}).setdefault(part, call)
    graphs = (_Compiled(number, found, calls[number]) for number, found in stages.items() if number in calls)
    found = [fault for graph in graphs if (fault := graph.fault()) is not None]
    found += [_of_kernel(call, error) for call, error in wrong_kernels if call.kernel is not None]
    wrong = {fault.graph for fault in found} | {fault.graph.partition("_")[0] for fault in found}
    return [*found, *memory_faults(rank, wrong)]


def _of_kernel(call: Call, error: float) -> LayerFault:
    kernel, at = call.kernel, call.source
    source = "" if at is None else f"{at.file}:{at.line} in {at.function}"
    return LayerFault("kernel", call.name, "" if kernel is None else kernel.graph, source, error)


class _Compiled:
    """A captured graph and what was made of it."""

    def __init__(self, number: str, stages: list[GraphStage], calls: Mapping[str, Call]) -> None:
        self._number = number
        self._calls = calls
        self._stages = {part: [stage for stage in stages if stage.part == part] for part in _PARTS}

    def fault(self) -> LayerFault | None:
        """Return the first layer that is wrong, or None."""
        captured = next(iter(self._stages[_JOINT] or self._stages["inference"]), None)
        if captured is None:
            return None
        return self._decompositions(captured) or self._passes(captured)

    @cached_property
    def _sources(self) -> dict[str, Any]:
        """What the placeholders of all graphs stand for, by name, as far as it was recorded."""
        found: dict[str, Any] = {}
        for part in _PARTS:
            stages, call = self._stages[part], self._calls.get(part)
            if stages and call is not None:
                found |= tensors_of(stages[-1].nodes.values(), call, is_wide=True)
        captured = self._stages[_JOINT] or self._stages["inference"]
        wanted = {node.name for node in captured[0].nodes.values() if node.op == "placeholder"}
        return {name: item for name, item in found.items() if name in wanted}  # a backward is given what was saved too

    @cached_property
    def _captured(self) -> dict[str, Any]:
        captured = next(iter(self._stages[_JOINT] or self._stages["inference"]))
        return values_of(captured.nodes.values(), self._sources, is_wide=True)

    def _decompositions(self, captured: GraphStage) -> LayerFault | None:
        values = self._captured
        for one in captured.decomposed:
            made = result_of(one.op, one.args, one.kwargs, values)
            results = made if isinstance(made, (list, tuple)) else [made]
            for result, node in zip(results, one.made, strict=False):
                error = 0.0 if node is None or node.name not in values else distance(result, values[node.name])
                if error and node is not None:
                    return self._fault("decomposition", one.op, captured.nodes[node.name], error)
        return None

    def _passes(self, captured: GraphStage) -> LayerFault | None:
        wanted = [taken(item, self._captured) for item in captured.outputs]
        stages = self._stages
        if stages["inference"]:
            return self._parted(stages["inference"], self._sources, wanted, "inference")
        found = self._parted(stages[_JOINT], self._sources, wanted, _JOINT)
        if found is not None or not stages["forward"]:
            return found
        gradients = len(stages["backward"][-1].outputs) if stages["backward"] else 0
        count = len(wanted) - gradients if gradients else 0
        found = self._parted(stages["forward"], self._sources, wanted[:count], "forward")
        if found is not None or not stages["backward"]:
            return found
        first, last = stages["forward"][0], stages["forward"][-1]
        saved = values_of(last.nodes.values(), self._sources, is_wide=True)
        outputs = zip(
            first.outputs, last.outputs, strict=False
        )  # a backward reads them by the names that they had first
        names = {one.name: taken(now, saved) for one, now in outputs if isinstance(one, NodeRef)}
        sources = self._sources | {name: value for name, value in names.items() if value is not None}
        return self._parted(stages["backward"], sources, wanted[count:], "backward")

    def _parted(
        self, stages: list[GraphStage], sources: Mapping[str, Any], wanted: list[Any], part: str
    ) -> LayerFault | None:
        """Return the first of some stages whose outputs are others than are wanted; the last is asked first."""
        if not stages or not _error_of(stages[-1], sources, wanted)[0]:
            return None
        for stage in stages:
            error, node = _error_of(stage, sources, wanted)
            if error:
                return self._fault("pass", stage.made_by, node, error, part)
        return None

    def _fault(self, layer: Layer, name: str, node: GraphNode | None, error: float, part: str = "") -> LayerFault:
        graph = f"{self._number}_{part or (_JOINT if self._stages[_JOINT] else 'inference')}"
        if node is not None and error == _UNFIT:
            fact = f"left {node.name} ({node.op}) with inputs of other shapes than the graph says"
            return LayerFault(layer, name, graph, source_of(node), None, fact)
        return LayerFault(layer, name, graph, source_of(node), error)


def _error_of(stage: GraphStage, sources: Mapping[str, Any], wanted: Sequence[Any]) -> tuple[float, GraphNode | None]:
    """Return how far the outputs of a graph are from what they should be, and the node of the farthest.

    `_UNFIT` and the node that cannot be run, where an output that is known before is not known for its sake.
    """
    unfit: list[GraphNode] = []
    values = values_of(stage.nodes.values(), sources, is_wide=True, unfit=unfit)
    pairs = list(zip(stage.outputs, wanted, strict=False))
    if unfit and any(taken(item, values) is None and want is not None for item, want in pairs):
        return _UNFIT, unfit[0]
    errors = [(distance(taken(item, values), want), item) for item, want in pairs]
    error, item = max(errors, key=lambda one: one[0], default=(0.0, None))
    return error, stage.nodes.get(item.name) if isinstance(item, NodeRef) else None
