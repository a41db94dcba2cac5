"""Which layer of a compiler lied: each graph is evaluated in float64 as it was captured, and after each pass.

Theory of operation
    A compiler turns a program into a graph, ops into simpler ones (decompositions), the graph into others (passes) and
    that into kernels. Each must compute what the one before does. All are run from what the compiled graph was given in
    the step: an op beside the nodes that stand for it, the outputs of the captured graph beside those after
    each pass. The first that differ name the layer. Kernels are judged by `rerun`, against the last graph. Where all
    that is right and the program still got something else, it was given other memory: the runtime's fault.
    Both graphs run in float64, so that rounding has no part in it.

    The last graph is run from the recorded inputs, in float64 and in the recorded dtypes. What was returned is far from
    both where a kernel was given a wrong buffer, or one that was written over before it was read. Rounding of a whole
    graph may be large, so that only what is far off counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import torch

from ...dump import COMPILED_GRAPH, Call, GraphNode, GraphStage, NodeRef, RankDump, Value
from ...errors import AtenDumpError
from ...store.op_names import UNDEFINED_OUTPUT_OPS, read_op_name
from ..rerun.allowed_ops import registered_op
from ..rerun.kernel_ops import NodeRun, placeholders_given
from ..rerun.shared_memory import wide
from .layer_fault import Layer, LayerFault, source_of

_REFUSED: Final = (AtenDumpError, RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, KeyError)
_SAME: Final = 1e-6  # relative; of float64 after many sums in another order
_TINY: Final = 1e-30
_UNEQUAL: Final = 0.01  # share of elements of an integer result that ties may decide

_FAR: Final = 0.05  # relative to the greatest element: no honest rounding
_HONEST: Final = 20.0  # times what the same graph is off in the recorded dtypes

_JOINT: Final = "joint"
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
                found |= inputs_of(stages[-1], call, is_wide=True)
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
        part = part or (_JOINT if self._stages[_JOINT] else "inference")
        return LayerFault(layer, name, f"{self._number}_{part}", source_of(node), error)


def _error_of(stage: GraphStage, sources: Mapping[str, Any], wanted: Sequence[Any]) -> tuple[float, GraphNode | None]:
    """Return how far the outputs of a graph are from what they should be, and the node of the farthest."""
    values = values_of(stage.nodes.values(), sources, is_wide=True)
    pairs = zip(stage.outputs, wanted, strict=False)
    errors = [(distance(taken(item, values), want), item) for item, want in pairs]
    error, item = max(errors, key=lambda one: one[0], default=(0.0, None))
    return error, stage.nodes.get(item.name) if isinstance(item, NodeRef) else None


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


def values_of(nodes: Iterable[GraphNode], sources: Mapping[str, Any], *, is_wide: bool) -> dict[str, Any]:
    """Return what each node makes, by name.

    Args:
        nodes: of a graph, in execution order.
        sources: what its placeholders stand for.
        is_wide: `sources` are float64 for floating numbers.
    """
    nodes = list(nodes)
    sizes = {node.size: sources[node.name] for node in nodes if node.size and type(sources.get(node.name)) is int}
    given = {node.name: sources[node.name] for node in nodes if node.op == "placeholder" and node.name in sources}
    run = NodeRun(given, sizes, is_wide)
    with torch.no_grad():
        for node in nodes:
            if node.op not in ("placeholder", "output") and not _is_free(node.op):
                try:
                    run.run(node)
                except _REFUSED:  # it is not known, and neither is what depends on it
                    continue
    return run.known


def result_of(op: str, args: Iterable[Any], kwargs: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return what an op makes of nodes' values in float64; None where it cannot be run or may give anything."""
    if _is_free(op):
        return None
    node = GraphNode("result", op, tuple(args), dict(kwargs), None, None, "", "", ())
    run = NodeRun(dict(values), {}, is_wide=True)
    try:
        with torch.no_grad():
            run.run(node)
    except _REFUSED:
        return None
    return run.known["result"]


def _is_free(op: str) -> bool:
    """Return True if an op draws random numbers, or returns memory that nothing has written."""
    found = registered_op(op)
    is_random = found is not None and torch.Tag.nondeterministic_seeded in found.tags
    return is_random or op.startswith("prims::inductor_") or read_op_name(op).without_overload in UNDEFINED_OUTPUT_OPS


def taken(item: Any, values: Mapping[str, Any]) -> Any:
    """Return what an output of a graph is; None where that is not known, or is none."""
    return values.get(item.name) if isinstance(item, NodeRef) else item


def distance(one: Any, other: Any) -> float:
    """Return how far two results in float64 are apart, relative to the greater; 0 where rounding explains it."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return 0.0
    if one.shape != other.shape:
        return 1.0
    if not one.numel():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        share = float((one != other).double().mean())
        return share if share > _UNEQUAL else 0.0
    one, other = one.double(), other.double()
    if not torch.equal(one.isfinite(), other.isfinite()):
        return 1.0
    one, other = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (one, other))
    size = max(float(one.abs().max()), float(other.abs().max()), _TINY)
    found = float((one - other).abs().max()) / size
    return found if found > _SAME else 0.0


def graph_calls(rank: RankDump) -> list[Call]:
    """Return the calls of compiled graphs, in execution order."""
    if not any(op.op.startswith(COMPILED_GRAPH) for op in rank.tables.ops.records()):
        return []
    return [call for call in rank.calls if call.op.startswith(COMPILED_GRAPH)]


def part_of(call: Call) -> tuple[str, str]:
    """Return the number of a captured graph and which part of it a call runs, ``("0", "forward")``."""
    number, _, part = call.op.removeprefix(COMPILED_GRAPH).partition("_")
    return number, part.partition("_")[0]


def inputs_of(stage: GraphStage, call: Call, *, is_wide: bool) -> dict[str, Any]:
    """Return what the placeholders of a graph were given, by name, as far as it was recorded.

    Args:
        stage: of the graph that `call` runs.
        call: of a compiled graph.
        is_wide: floating numbers in float64.
    """
    found: dict[str, Any] = {}
    for name, item in placeholders_given(stage.nodes.values(), call).items():
        if not isinstance(item, Value):
            found[name] = item
        elif not item.undefined:
            try:
                tensor = item.tensor()
            except AtenDumpError:  # its bytes were not recorded
                continue
            found[name] = tensor.to(wide(tensor.dtype)) if is_wide else tensor
    return found
