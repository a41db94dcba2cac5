"""Kernels that a compiler generated: the nodes of its graph that each computes, and its source code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ..errors import FormatError
from ..store import records
from ..store.argument_trees import fold
from .argument_decoding import Frame, container, decode
from .index.tables import Tables

_FIELDS: Final = 10  # of a node, its tag included


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
    """

    graph: str
    code: str
    given: tuple[tuple[str, ...], ...]
    made: tuple[str, ...]
    nodes: tuple[GraphNode, ...]


class Kernels:
    """The kernels of one step and rank."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._graph = cache(self._read_graph)
        self.of = cache(self._read)

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
        return CompiledKernel(name, self._tables.text(record.code), given, made, nodes)

    def _read_graph(self, number: int) -> tuple[str, dict[str, GraphNode]]:
        record = self._tables.graphs.find(number)
        if record is None:
            raise FormatError(f"{self._tables.where} names graph {number}, which it does not hold")
        return record.name, _nodes_of(record, lambda stack: tuple(self._tables.stack(stack)))


def _nodes_of(record: records.Graph, stack: Callable[[int], tuple[Frame, ...]]) -> dict[str, GraphNode]:
    """Return the nodes of a graph by name.

    Raises:
        FormatError: a node is not what docs/format.md says.
    """
    found = {}
    for tree in record.nodes:
        node = _read_node(tree, stack)
        if any(name not in found for name in node.reads):
            raise FormatError(f"graph {record.name!r} has a node {node.name!r} that reads a later one; it was changed")
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


def _computed(graph: dict[str, GraphNode], given: set[str], made: set[str]) -> tuple[GraphNode, ...]:
    """Return the nodes that must run to make some, where the results of those in `given` are there, in order."""
    wanted: set[str] = set()
    waiting = [name for name in made if name in graph]
    while waiting:
        name = waiting.pop()
        if name not in wanted and name not in given:
            wanted.add(name)
            waiting += graph[name].reads
    return tuple(node for name, node in graph.items() if name in wanted)
