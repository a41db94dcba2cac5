"""What the nodes of a compiled graph make of given inputs, and how far two results are apart.

Nodes that cannot be run, and those that draw random numbers or return memory that nothing wrote, are not known, and
neither is what depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from ...dump import COMPILED_GRAPH, Call, GraphNode, NodeRef, RankDump, Value
from ...errors import AtenDumpError
from ...store.op_names import UNDEFINED_OUTPUT_OPS, read_op_name
from ..rerun.allowed_ops import registered_op
from ..rerun.kernel_ops import NodeRun, placeholders_given
from ..rerun.shared_memory import wide

_REFUSED: Final = (AtenDumpError, RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, KeyError)
_SAME: Final = 1e-6  # relative; of float64 after many sums in another order
_TINY: Final = 1e-30
_UNEQUAL: Final = 0.01  # share of elements of an integer result that ties may decide


def values_of(
    nodes: Iterable[GraphNode], sources: Mapping[str, Any], *, is_wide: bool, unfit: list[GraphNode] | None = None
) -> dict[str, Any]:
    """Return what each node makes, by name.

    Args:
        nodes: of a graph, in execution order.
        sources: what its placeholders stand for.
        is_wide: `sources` are float64 for floating numbers.
        unfit: the first node is added to it whose op refuses the shapes of its inputs, or makes another shape than the
            graph says.
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
                    is_unfit = unfit == [] and not run.fits(node)
                else:
                    is_unfit = unfit == [] and _has_another_shape(node, run.known[node.name])
                if unfit is not None and is_unfit:
                    unfit.append(node)
    return run.known


def _has_another_shape(node: GraphNode, made: Any) -> bool:
    if not isinstance(made, torch.Tensor) or node.shape is None:
        return False
    pairs = zip(node.shape, made.shape, strict=False)
    return len(node.shape) != made.dim() or any(isinstance(said, int) and said != size for said, size in pairs)


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


def tensors_of(nodes: Iterable[GraphNode], call: Call, *, is_wide: bool) -> dict[str, Any]:
    """Return what the placeholders of a graph were given, by name, as far as it was recorded.

    Args:
        nodes: of the graph that `call` runs.
        call: of a compiled graph.
        is_wide: floating numbers in float64.
    """
    found: dict[str, Any] = {}
    for name, item in placeholders_given(nodes, call).items():
        if not isinstance(item, Value):
            found[name] = item
        elif not item.undefined:
            try:
                tensor = item.tensor()
            except AtenDumpError:  # its bytes were not recorded
                continue
            found[name] = tensor.to(wide(tensor.dtype)) if is_wide else tensor
    return found
