"""Which inputs of a call it only writes to: what such memory held before has no effect, and may be garbage."""

from __future__ import annotations

from typing import Final

from .op_names import read_op_name
from .records import Call, Op, Tree

# Calls that set every element of their first argument without a look at it, by `Op.api`.
_OVERWRITING: Final = frozenset(
    f"{prefix}{name}"
    for prefix, names in (
        ("", "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_"),
        ("_foreach_", "copy_ zero_"),
    )
    for name in names.split()
)


def read_inputs(op: Op, call: Call) -> list[Tree]:
    """Return the arguments of a call but those that it only writes to.

    Args:
        op: what it calls. What an aten op writes among its keywords is an ``out=`` of its.
        call: its record; what it wrote decides, so that a call that failed has read all.
    """
    args, kwargs = call.args, call.kwargs or {}
    written = (call.written or [])[::2]
    if not written:
        return [*args, *kwargs.values()]
    first = 1 if op.api in _OVERWRITING else 0
    outs = set(written) if read_op_name(op.op).namespace == "aten" else {"out"}
    return [*args[first:], *(tree for name, tree in kwargs.items() if name not in outs)]
