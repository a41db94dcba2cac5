"""Nodes of FX graphs as plain facts: graphs are changed in place, and what is kept of them must not be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

_FRAME: Final = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_ROOT_MODULE: Final = re.compile(r"^L\['\w+'\]\.?")


class NodeName(NamedTuple):
    """What another node made, as an argument; ``""`` for a tensor that no node made."""

    name: str


class TracedFrame(NamedTuple):
    """A line of the program that a compiler has traced."""

    file: str
    line: int
    function: str


class NodeFacts(NamedTuple):
    """A node of a graph. In `args` and `kwargs` a `NodeName` stands for what another node made."""

    name: str
    target: str  # "aten::add.Tensor"; "placeholder" of an input of the graph, "output" of what it returns
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: list[Any] | None  # of the tensor that it makes; a text where it is not known before the graph runs
    dtype: torch.dtype | None
    symbol: str  # what it is in terms of the graph's sizes, where it makes a number
    module: str  # path of the module that ran it
    frames: tuple[TracedFrame, ...]  # of the program's source, the outermost first


def named(item: Any) -> Any:
    """Return arguments with the names of nodes in the places of nodes."""
    return torch.fx.node.map_arg(item, lambda node: NodeName(node.name))


def facts_of(node: Any) -> NodeFacts:
    """Return what is kept of a node, as it is now."""
    value = node.meta.get("val")
    is_tensor = isinstance(value, torch.Tensor)
    symbol = str(value.node.expr) if isinstance(value, (torch.SymInt, torch.SymFloat)) else ""
    target = node.op
    if node.op == "call_function":
        is_op = isinstance(node.target, torch._ops.OpOverload)
        target = node.target.name() if is_op else _path_of(node.target)
    return NodeFacts(
        node.name,
        target,
        named(node.args),
        named(node.kwargs),
        [size if type(size) is int else str(size) for size in value.shape] if is_tensor else None,
        value.dtype if is_tensor else None,
        symbol,
        _module_of(node),
        tuple(_frames_of(node.meta.get("stack_trace") or "")),
    )


def _path_of(function: Any) -> str:
    if isinstance(function, torch._ops.HigherOrderOperator):
        return f"higher_order::{function.name()}"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def _module_of(node: Any) -> str:
    """Return the path of the module that a node is of, in backward that of its forward."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    innermost = next(reversed(stack.values()), ("",))[0] if stack else ""
    path = re.sub(r"_modules\['(\w+)'\]|\['?(\w+)'?\]", r".\1\2", _ROOT_MODULE.sub("", innermost))
    return path.replace("..", ".").strip(".")


def _frames_of(trace: str) -> Iterator[TracedFrame]:
    for line in trace.splitlines():
        found = _FRAME.fullmatch(line)
        if found is not None:
            yield TracedFrame(found[1], int(found[2]), found[3])
