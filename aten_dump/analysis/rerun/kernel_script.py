"""The lines of a script that run a generated kernel again: the nodes of its graph, and with ``--kernel`` its own code.

The code is the dump's, which may come from a stranger: it is in the script as a text, and is compiled only when asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ...dump import Call, CompiledKernel, GraphNode, NodeRef
from ...errors import ReplayError
from ...torch_names import OPS_OF_INDUCTOR
from .kernel_ops import behind_unknown, is_of_inductor, op_of

_SIGNATURE: Final = re.compile(r'extern "C"[^(]*?\bkernel\(([^)]*)\)')
_PARAMETER: Final = re.compile(r"(const )?([A-Za-z0-9_:]+)(\*?) (\w+)")
_COPIES: Final = "aten::copy_"
_PLAIN: Final = {
    "_operator.getitem": "{0}[{1}]",
    "_operator.mul": "{0} * {1}",
    "_operator.add": "{0} + {1}",
    "_operator.sub": "{0} - {1}",
    "_operator.floordiv": "{0} // {1}",
    "prims::fma": "{0} * {1} + {2}",
}
Literal = Callable[[Any], str]


def kernel_lines(call: Call, kernel: CompiledKernel, literal: Literal, path: Callable[[Any], str]) -> Iterator[str]:
    """Yield the lines that compute what a kernel does into its ``out``.

    Args:
        call: of a generated kernel.
        kernel: what it computes.
        literal: writes an argument of the call as source.
        path: writes where an op is in ``torch.ops``.

    Raises:
        ReplayError: a node has no form in source.
    """
    args, kwargs = call.inputs
    behind = behind_unknown(call)
    known = {name: literal(value) for name, value in behind.items()}
    known |= {name: literal(item) for names, item in zip(kernel.given, args, strict=True) for name in names}
    outs = [literal(out) for out in kwargs["out"]]
    given = dict(zip(call.arguments, map(literal, args), strict=False))
    types, names = _parameters(kernel.code, given, outs)
    yield f"CODE = {kernel.code!a}"
    if names:
        yield 'if "--kernel" in sys.argv:  # this compiles and runs CODE, as the dump has it: read it first'
        yield "    from torch._inductor.async_compile import AsyncCompile"
        yield f"    made = AsyncCompile().cpp_pybinding({types!a}, CODE)"
        yield f"    (made.result() if hasattr(made, 'result') else made)({', '.join(names)})"
    yield "else:" if names else "if True:"
    yield "    torch.set_grad_enabled(False)"
    nodes = kernel.nodes_beyond(behind)
    if any(map(is_of_inductor, nodes)):
        yield f"    import {OPS_OF_INDUCTOR}"
    for number, node in enumerate(nodes):
        if node.size in kwargs:
            known[node.name] = literal(kwargs[node.size])
            continue
        yield f"    node{number} = {_node(node, known, literal, path)}"
        known[node.name] = f"node{number}"
    for name, out in zip(kernel.made, outs, strict=True):
        if name:
            yield f"    {out}.copy_({known[name]}.reshape({out}.shape))"


def _node(node: GraphNode, known: dict[str, str], literal: Literal, path: Callable[[Any], str]) -> str:
    def text(item: Any) -> str:
        if isinstance(item, NodeRef):
            if item.name not in known:
                raise ReplayError(f"its graph reads {item.name!a}, which was not recorded as an input of the kernel")
            return known[item.name]
        if isinstance(item, (list, tuple)):
            return "[" + ", ".join(map(text, item)) + "]"
        return literal(item)

    args = [text(item) for item in node.args]
    if node.op in _PLAIN:
        return _PLAIN[node.op].format(*args)
    if node.op.startswith(_COPIES):
        return f"{args[1]}.to({args[0]}.dtype).expand({args[0]}.shape)"
    op = op_of(node)
    keywords = {argument.name for argument in op._schema.arguments}
    if not keywords.issuperset(node.kwargs):
        raise ReplayError(f"{op.name()} has no argument {sorted(set(node.kwargs) - keywords)[0]!a}")
    args += [f"{name}={text(item)}" for name, item in node.kwargs.items()]
    return f"torch.ops.{path(op)}({', '.join(args)})"


def _parameters(code: str, given: dict[str, str], outs: list[str]) -> tuple[list[str], list[str]]:
    """Return the types of a kernel's parameters and what is passed for each; nothing where one was not recorded."""
    signature = _SIGNATURE.search(code)
    found = [_PARAMETER.fullmatch(part.strip()) for part in signature[1].split(",")] if signature else []
    types, names, left = [], [], list(outs)
    for one in found:
        is_out = one is not None and one[3] and not one[1]
        name = (left.pop(0) if left else None) if is_out else None if one is None else given.get(one[4])
        if one is None or name is None:
            return [], []
        types.append(f"{one[1] or ''}{one[2]}{one[3]}")
        names.append(name)
    return types, names
