"""What the nodes of a graph come to, from given inputs; what cannot be run is left out with all that depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from ...dump import GraphNode, NodeRef
from ...errors import AtenDumpError
from ...store.op_names import UNDEFINED_OUTPUT_OPS, read_op_name
from ..rerun.allowed_ops import registered_op
from ..rerun.kernel_ops import NodeRun

_REFUSED: Final = (AtenDumpError, RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, KeyError)
_SAME: Final = 1e-6  # relative; of float64 after many sums in another order
_TINY: Final = 1e-30
_UNEQUAL: Final = 0.01  # share of elements of an integer result that ties may decide


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
