"""A graph on its way through the compiler: as it was captured, what was decomposed, and what each pass made of it.

Theory of operation
    AOTAutograd traces a function to a graph of forward and backward together. While it does so, an op that has a
    decomposition is replaced by the nodes of that (`maybe_handle_decomp`): what it was given and what stands for its
    results is kept. Inductor's passes then change the graph, each through a `GraphTransformObserver`; the partitioner
    makes a forward and a backward of it. Whenever one of them has changed something, the graph is kept as it is then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .fx_nodes import NodeFacts, NodeName, facts_of, named
from .patches import Patch

_PROXIES: Final = "torch.fx.experimental.proxy_tensor"
_CAPTURE: Final = "torch._functorch._aot_autograd.graph_capture"
_OBSERVER: Final = "torch.fx.passes.graph_transform_observer"
CAPTURED: Final = "captured"
PARTITIONED: Final = "partitioned"
UNOBSERVED: Final = "other passes"  # that no observer sees: the graph differs from what the last one left
JOINT: Final = "joint"


class Decomposed(NamedTuple):
    """An op that other nodes stand for."""

    op: str
    args: Any
    kwargs: Any
    made: list[Any]  # for each tensor of its result, the name of the node that stands for it


class Stage(NamedTuple):
    """A graph at one moment."""

    part: str  # "joint" for forward and backward together, else "forward", "backward" or "inference"
    made_by: str  # `CAPTURED`, `PARTITIONED`, `UNOBSERVED`, or the name of a pass
    nodes: list[NodeFacts]
    decomposed: list[Decomposed]


def name_of_graph() -> str:
    """Return the name of the graph that is compiled on this thread, as torch's logs have it; "" of none."""
    context = torch._guards.TracingContext.try_get()
    return "_".join(map(str, getattr(context, "aot_graph_name", None) or ()))


class GraphStages:
    """Watches graphs being changed."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """Begin; `failed` is called where the compiler is not as it is known."""
        self._failed = failed
        self._patches: list[Patch] = []
        self._stages: dict[str, list[Stage]] = {}  # by number of the captured function, which torch counts
        self._tracing = threading.local()

    def install(self) -> None:
        """Begin to watch."""
        for module, name, ours in (
            (_PROXIES, "maybe_handle_decomp", self._decompose),
            (_CAPTURE, "_create_graph", self._create_graph),
        ):
            owner = sys.modules.get(module)
            if hasattr(owner, name):
                self._patches.append(Patch(owner, name, ours(getattr(owner, name))))
        observer = getattr(sys.modules.get(_OBSERVER), "GraphTransformObserver", None)
        for name in ("apply_graph_pass", "apply_gm_pass"):
            if hasattr(observer, name):
                self._patches.append(Patch(observer, name, self._apply(getattr(observer, name))))

    def remove(self) -> None:
        """Leave the compiler as it was."""
        patches, self._patches = self._patches, []
        for patch in reversed(patches):
            patch.undo()

    def until(self, name: str, graph: Any) -> list[Stage]:
        """Return the stages of a graph that was lowered, the last of which is what was lowered."""
        number, _, part = name.partition("_")
        self._keep(name, UNOBSERVED, graph)
        return [stage for stage in self._stages.get(number, ()) if stage.part in (JOINT, part)]

    def _keep(self, name: str, made_by: str, graph: Any, decomposed: list[Decomposed] | None = None) -> None:
        """Keep a graph as it is now, if it is another than before."""
        number, _, part = name.partition("_")
        stages = self._stages.setdefault(number, [])
        before = next((stage for stage in reversed(stages) if stage.part == part), None)
        known = {node.name: node for stage in stages for node in stage.nodes}
        nodes = []
        for node in map(facts_of, graph.nodes):
            same = known.get(node.name)
            nodes.append(node if same is None or same != node else same)  # one object for a node that no stage changes
        if before is not None and made_by == PARTITIONED:
            made_by = UNOBSERVED
        if before is None or before.nodes != nodes:
            stages.append(Stage(part, made_by, nodes, decomposed or []))

    def _decompose(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def maybe_handle_decomp(proxy_mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
            seen = getattr(self._tracing, "decomposed", None)
            if seen is None or op not in proxy_mode.decomposition_table:
                return original(proxy_mode, op, args, kwargs)
            given = _nodes_of(proxy_mode.tracer, (args, kwargs))  # before: it may write to what it is given
            result = original(proxy_mode, op, args, kwargs)
            if result is not NotImplemented:
                seen.append((op.name(), *given, [*_leaves(_nodes_of(proxy_mode.tracer, result))]))
            return result

        return maybe_handle_decomp

    def _create_graph(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_graph(*args: Any, aot_config: Any, **kwargs: Any) -> Any:
            before = getattr(self._tracing, "decomposed", None)
            seen = self._tracing.decomposed = []
            try:
                module = original(*args, aot_config=aot_config, **kwargs)
            finally:
                self._tracing.decomposed = before
            try:
                self._captured(str(aot_config.aot_id), module.graph, seen)
            except Exception as error:  # noqa: BLE001 - the program is compiled, whatever this makes of it
                self._failed(error)
            return module

        return create_graph

    def _captured(self, number: str, graph: Any, seen: list[Any]) -> None:
        names = {node.name for node in graph.nodes}
        decomposed = []
        for op, args, kwargs, made in seen:
            found = [named(node) if isinstance(node, torch.fx.Node) and node.name in names else None for node in made]
            decomposed.append(Decomposed(op, named(args), named(kwargs), found))
        is_joint = any(node.op == "placeholder" and node.name.startswith("tangents") for node in graph.nodes)
        self._keep(f"{number}_{JOINT if is_joint else 'inference'}", CAPTURED, graph, decomposed)

    def _apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(observer: Any, pass_fn: Any) -> Any:
            name = name_of_graph()
            if name.partition("_")[0] not in self._stages:
                return original(observer, pass_fn)
            self._after(name, PARTITIONED, observer)
            result = original(observer, pass_fn)
            self._after(name, f"pass {observer.passname}", observer)
            return result

        return apply

    def _after(self, name: str, made_by: str, observer: Any) -> None:
        try:
            self._keep(name, made_by, observer.gm.graph)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)


def _nodes_of(tracer: Any, item: Any) -> Any:
    """Return arguments or results with the nodes that stand for tensors and sizes, as they are traced."""
    proxies = sys.modules[_PROXIES]

    def node(leaf: Any) -> Any:
        if isinstance(leaf, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            found = proxies.get_proxy_slot(leaf, tracer, None)
            found = found.force() if hasattr(found, "force") else getattr(found, "proxy", found)
            return getattr(found, "node", NodeName(""))
        return leaf

    return tree_map(node, item)


def _leaves(item: Any) -> Iterator[Any]:
    yield from tree_leaves(item, is_leaf=lambda leaf: leaf is None)
