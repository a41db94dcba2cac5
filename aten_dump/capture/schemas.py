"""What the recorder needs to know of an op, worked out once per op from its schema."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .calls import CallName

# Ops whose schema does not own up to a write: op name -> (arguments written, the bool argument that enables it).
_UNDECLARED_WRITES: Final[dict[str, tuple[tuple[int, ...], int | None]]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::_batch_norm_impl_index": ((3, 4), 5),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
}

# Ops that return memory nothing has written yet.
_UNDEFINED_OUTPUT: Final = frozenset(
    "aten::" + name
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "empty_quantized",
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
        "new_empty",
        "new_empty_strided",
    )
)

_PREFIXES: Final = {"aten": "Aten", "npu": "NPU", "c10d": "Distributed", "_c10d_functional": "Distributed"}


class OpPlan(NamedTuple):
    """How to record calls of one op."""

    name: CallName  # "aten::add_.Tensor", "Aten", "add_"
    arguments: tuple[str, ...]
    writes: tuple[tuple[int, str], ...]  # (position, name) of arguments written in place
    enabled_by: int | None  # position of the bool argument that enables those writes
    undefined_output: bool
    bumps_versions: bool = False  # see `ops._bump_versions`


_plans: dict[Any, OpPlan] = {}


def plan_of(func: Any) -> OpPlan:
    """Return the plan of an OpOverload or a higher-order operator."""
    plan = _plans.get(func)
    if plan is None:
        plan = _plans[func] = _make_plan(func)
    return plan


def _make_plan(func: Any) -> OpPlan:
    schema = getattr(func, "_schema", None)
    name: str = func.name()
    namespace, _, rest = name.rpartition("::")
    base = rest.partition(".")[0]
    op = name if namespace else f"higher_order::{name}"
    prefix = _PREFIXES.get(namespace, "Custom" if namespace else "Aten")
    if schema is None:
        return OpPlan(CallName(op, prefix, base), (), (), None, False)
    arguments = tuple(a.name for a in schema.arguments)
    writes = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    enabled_by = None
    undeclared = _UNDECLARED_WRITES.get(f"{namespace}::{base}")
    if undeclared is not None and not writes:
        writes, enabled_by = tuple((i, arguments[i]) for i in undeclared[0]), undeclared[1]
    undefined_output = f"{namespace}::{base}" in _UNDEFINED_OUTPUT
    bumps_versions = namespace == "aten" and base.startswith("_foreach_") and bool(writes)
    return OpPlan(CallName(op, prefix, base), arguments, writes, enabled_by, undefined_output, bumps_versions)
