"""Graphs of compiled code as records: their nodes, and the stages that they went through."""

from __future__ import annotations

from typing import Any

from ...store.records import STAGE, TREE_DICT, TREE_LIST, TREE_NODE, TREE_TUPLE, Stage, Tree
from ..torch_internals.fx_nodes import NodeFacts, NodeName
from ..torch_internals.graph_stages import Decomposed
from ..torch_internals.inductor import LoweredGraph
from ..values.argument_encoding import encode


class StageRecords:
    """Writes each stage of a graph once, to the first step that runs it."""

    def __init__(self) -> None:
        self._written: dict[int, Any] = {}  # stages that are on file, by identity

    def write(self, step: Any, graph: LoweredGraph, known: dict[str, dict[int, int]]) -> None:
        """Write the stages of a graph that are not on file.

        Args:
            step: that runs it.
            graph: that was lowered.
            known: of the step: the places of the nodes that were written, by identity, by number of the captured graph.
        """
        number = graph.name.partition("_")[0]
        places = known.setdefault(number, {})
        for stage in graph.stages:
            if id(stage) in self._written:
                continue
            self._written[id(stage)] = stage
            new = [node for node in stage.nodes if id(node) not in places]
            places |= {id(node): place for place, node in enumerate(new, len(places))}
            nodes = [tree_of(node, step.interner) for node in new]
            order = [places[id(node)] for node in stage.nodes]
            decomposed = [_tree_of_decomposed(one) for one in stage.decomposed]
            step.emit(Stage(STAGE, len(self._written), number, stage.part, stage.made_by, nodes, order, decomposed))


def tree_of(node: NodeFacts, interner: Any) -> Tree:
    """Return a node as it is written to an index; see `records.Graph`."""
    return (
        TREE_LIST,
        node.name,
        node.target,
        _encoded(list(node.args)),
        _encoded(dict(node.kwargs)),
        None if node.shape is None else (TREE_LIST, *node.shape),
        None if node.dtype is None else str(node.dtype).removeprefix("torch."),
        node.symbol,
        node.module,
        interner.traced_stack(node.frames),
    )


def _encoded(item: Any) -> Tree:
    if isinstance(item, NodeName):
        return (TREE_NODE, item.name)
    if isinstance(item, (list, tuple)):
        return (TREE_TUPLE if isinstance(item, tuple) else TREE_LIST, *map(_encoded, item))
    if isinstance(item, dict):
        return (TREE_DICT, *(part for key, value in item.items() for part in (str(key), _encoded(value))))
    return encode(item, None, keep=False)  # type: ignore[arg-type]  # it holds no tensor


def _tree_of_decomposed(one: Decomposed) -> Tree:
    return (TREE_LIST, one.op, _encoded(list(one.args)), _encoded(dict(one.kwargs)), _encoded(one.made))
