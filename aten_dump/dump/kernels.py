"""Kernels that a compiler generated: the nodes of its graph that each computes, and its source code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final

from ..errors import FormatError
from ..store import records
from ..store.argument_trees import fold
from .argument_decoding import Frame, container, decode
from .index.tables import Tables

COMPILED_GRAPH: Final = "inductor.graph:"  # how the op of a call of a compiled graph begins
_FIELDS: Final = 10  # of a node, its tag included
_DECOMPOSED_FIELDS: Final = 4  # of an op that was decomposed


@dataclass(frozen=True, slots=True)
class NodeRef:
    """What a node of a graph made, as an argument of another one."""

    name: str


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of a graph that was compiled.

    Attributes:
        name: within the graph.
        op: what it calls, ``"aten::add.Tensor"``; ``"placeholder"`` of an input of the graph.
        args: positional arguments; `NodeRef` stands for other nodes.
        kwargs: keyword arguments.
        shape: of the tensor that it makes; a text for a size that differs from call to call. None of other nodes.
        dtype: of that tensor, ``"float32"``; None of other nodes.
        size: the expression that it is, where it makes a number of sizes (``"s77"``).
        module: path of the module that ran it, within the compiled function.
        stack: lines of the program, the innermost first.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int | str, ...] | None
    dtype: str | None
    size: str
    module: str
    stack: tuple[Frame, ...]

    @property
    def reads(self) -> list[str]:
        """The names of the nodes whose results it is given."""
        return list(_names_in((self.args, self.kwargs)))


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What a kernel of compiled code computes.

    Attributes:
        graph: name of the graph that it is of, as torch's logs have it (``"0_forward"``).
        code: its source.
        given: for each argument of its calls, the names of the nodes that made it; empty for a size.
        made: for each tensor of ``out``, the node whose result it is; ``""`` where that is not known.
        nodes: the nodes that it computes, in execution order.
        graph_nodes: all nodes of its graph, by name.
    """

    graph: str
    code: str
    given: tuple[tuple[str, ...], ...]
    made: tuple[str, ...]
    nodes: tuple[GraphNode, ...]
    graph_nodes: Mapping[str, GraphNode] = field(default_factory=dict, repr=False)

    def nodes_beyond(self, known: Iterable[str]) -> tuple[GraphNode, ...]:
        """Return the nodes that it computes where the results of some more nodes are known, in execution order."""
        return _computed(self.graph_nodes, {*known, *(one for names in self.given for one in names)}, set(self.made))


@dataclass(frozen=True, slots=True)
class DecomposedOp:
    """An op of a captured graph that other nodes stand for.

    Attributes:
        op: ``"aten::gelu"``.
        args: positional arguments; `NodeRef` stands for other nodes, with an empty name for a tensor that no node made.
        kwargs: keyword arguments.
        made: for each tensor of its result, the node that stands for it; None where none does.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: tuple[NodeRef | None, ...]


@dataclass(frozen=True, slots=True)
class GraphStage:
    """A graph on its way through a compiler.

    Attributes:
        graph: what the names of the graphs made of it begin with: ``"0"`` of ``"0_forward"`` and ``"0_backward"``.
        part: ``"joint"`` for forward and backward together, else ``"forward"``, ``"backward"`` or ``"inference"``.
        made_by: ``"captured"``, ``"partitioned"``, ``"other passes"``, or ``"pass "`` and its name.
        nodes: by name, in execution order; the one with the op ``"output"`` is last.
        decomposed: the ops that were decomposed while it was captured, an inner one before the one around it.
    """

    graph: str
    part: str
    made_by: str
    nodes: Mapping[str, GraphNode]
    decomposed: tuple[DecomposedOp, ...]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """What the graph returns: `NodeRef`, numbers, None."""
        last = next((node for node in self.nodes.values() if node.op == "output"), None)
        found = last.args[0] if last is not None and last.args else ()
        return tuple(found) if isinstance(found, (list, tuple)) else (found,)


class Kernels:
    """The kernels of one step and rank."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._graph = cache(self._read_graph)
        self.of = cache(self._read)

    @cached_property
    def stages(self) -> tuple[GraphStage, ...]:
        """The stages of the graphs that this step was the first to run, in the order in which they were made.

        Raises:
            FormatError: they are not what docs/format.md says.
        """
        known: dict[str, list[GraphNode]] = {}
        found = []
        for record in self._tables.stages:
            nodes = known.setdefault(record.graph, [])
            nodes += [_read_node(tree, self._stack) for tree in record.nodes]
            if any(place >= len(nodes) for place in record.order):
                raise FormatError(f"stage {record.id} has a node that no stage before it has; it was changed")
            chosen = _checked(f"{record.graph} {record.part}", (nodes[place] for place in record.order))
            decomposed = tuple(map(_read_decomposed, record.decomposed))
            found.append(GraphStage(record.graph, record.part, record.made_by, chosen, decomposed))
        return tuple(found)

    def nodes_of(self, graph: str) -> list[GraphNode]:
        """Return the nodes of a compiled graph, by its name; none where it has no kernel."""
        found = (self._graph(record.id) for record in self._tables.graphs.records())
        return [node for name, nodes in found if name == graph for node in nodes.values()]

    def _stack(self, number: int) -> tuple[Frame, ...]:
        return tuple(self._tables.stack(number))

    def _read(self, op: int) -> CompiledKernel | None:
        """Return what the calls of an op compute; None if it is no kernel that a compiler generated.

        Raises:
            FormatError: it is not what docs/format.md says.
        """
        record = self._tables.kernels.find(op)
        if record is None:
            return None
        name, graph = self._graph(record.graph)
        given, made = tuple(tuple(names.split()) for names in record.given), tuple(record.made)
        nodes = _computed(graph, {one for names in given for one in names}, set(made))
        return CompiledKernel(name, self._tables.text(record.code), given, made, nodes, graph)

    def _read_graph(self, number: int) -> tuple[str, dict[str, GraphNode]]:
        record = self._tables.graphs.find(number)
        if record is None:
            raise FormatError(f"{self._tables.where} names graph {number}, which it does not hold")
        return record.name, _checked(record.name, (_read_node(tree, self._stack) for tree in record.nodes))


def _checked(graph: str, nodes: Iterable[GraphNode]) -> dict[str, GraphNode]:
    """Return the nodes of a graph by name.

    Raises:
        FormatError: a node is not what docs/format.md says.
    """
    found: dict[str, GraphNode] = {}
    for node in nodes:
        if any(name not in found for name in node.reads):
            raise FormatError(f"graph {graph!r} has a node {node.name!r} that reads a later one; it was changed")
        found[node.name] = node
    return found


def _read_node(tree: Any, stack: Callable[[int], tuple[Frame, ...]]) -> GraphNode:
    is_node = type(tree) is tuple and len(tree) >= _FIELDS
    fields: tuple[Any, ...] = tree[1:_FIELDS] if is_node else (None,) * (_FIELDS - 1)
    name, op, args, kwargs, shape, dtype, size, module, place = fields
    texts = (name, op, size, module, "" if dtype is None else dtype)
    if not all(type(text) is str for text in texts) or type(place) is not int:
        raise FormatError(f"a graph has a node {tree!r:.100} that is not what docs/format.md says; it was changed")
    sizes = None if shape is None else tuple(decode(shape, _no_value))
    return GraphNode(name, op, tuple(_decoded(args)), dict(_decoded(kwargs)), sizes, dtype, size, module, stack(place))


def _read_decomposed(tree: Any) -> DecomposedOp:
    fields = _decoded(tree) if type(tree) is tuple else None
    if type(fields) is list and len(fields) >= _DECOMPOSED_FIELDS:
        op, args, kwargs, made = fields[:_DECOMPOSED_FIELDS]
        if type(op) is str and type(args) is list and type(kwargs) is dict and type(made) is list:
            return DecomposedOp(
                op, tuple(args), kwargs, tuple(one if isinstance(one, NodeRef) else None for one in made)
            )
    raise FormatError(f"a stage has an op {tree!r:.100} that is not what docs/format.md says; it was changed")


def _decoded(tree: Any) -> Any:
    def leaf(item: Any) -> Any:
        if type(item) is tuple and item[0] == records.TREE_NODE:
            return NodeRef(str(item[1]))
        return decode(item, _no_value)

    return fold(tree, leaf, container)


def _no_value(number: int) -> Any:
    raise FormatError(f"a graph names value {number}; it was changed")


def _names_in(item: Any) -> Iterator[str]:
    if isinstance(item, NodeRef):
        yield item.name
    elif isinstance(item, dict):
        yield from _names_in(list(item.values()))
    elif isinstance(item, (list, tuple)):
        for entry in item:
            yield from _names_in(entry)


def _computed(graph: Mapping[str, GraphNode], given: set[str], made: set[str]) -> tuple[GraphNode, ...]:
    """Return the nodes that must run to make some, where the results of those in `given` are there, in order."""
    wanted: set[str] = set()
    waiting = [name for name in made if name in graph]
    while waiting:
        name = waiting.pop()
        if name not in wanted and name not in given:
            wanted.add(name)
            waiting += graph[name].reads
    return tuple(node for name, node in graph.items() if name in wanted)
