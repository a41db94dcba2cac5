"""What the recorder needs to know of an op, worked out once per op from its schema."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from ...store.op_names import TRANSFER_NAMESPACES, UNDEFINED_OUTPUT_OPS, read_op_name
from .call_name import CallName

# Ops whose schema names less, or more, than they write:
# op name -> (arguments written, the bool argument that enables it).
_UNDECLARED_WRITES: Final[dict[str, tuple[tuple[int, ...], int | None]]] = {
    "aten::batch_norm": ((3, 4), 5),  # these two reach a mode in inference mode alone
    "aten::instance_norm": ((3, 4), 5),
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::_batch_norm_impl_index": ((3, 4), 5),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
    "aten::batch_norm_update_stats": ((1, 2), None),
    "aten::rrelu_with_noise": ((1,), 4),  # declared, but it writes the noise in training only
    "aten::_cudnn_rnn": ((15,), 12),  # the state of its generator of dropout
    "aten::_cudnn_rnn_backward": ((20,), None),  # the reserve buffer of the forward
    "npu::npu_change_data_ptr": ((0,), None),
}

_MOVES: Final = frozenset(("npu::npu_change_data_ptr",))
_COPIES: Final = frozenset(("aten::copy_", "aten::clone", "aten::_lazy_clone", "aten::_to_copy"))
_AHEAD_OF_OPS_IN_PLACE: Final = frozenset(("aten::clone", "aten::detach"))  # by autograd, of what they are to overwrite

# Ops that draw random numbers where they are asked to drop some, and do not say so.
_UNDECLARED_DRAWS: Final = frozenset(
    "npu::" + name
    for name in (
        *("npu_fusion_attention", "npu_fusion_attention_v2", "npu_fusion_attention_v3", "npu_multi_head_attention"),
        *("npu_fused_attention_score", "npu_fused_attention_score_fwd", "npu_dropout_with_add_softmax"),
        *("_npu_dropout", "npu_dropout_gen_mask", "dropout_with_byte_mask", "_dropout_with_byte_mask"),
    )
)

# Ops that write, undeclared, to memory that an output is a view of: op name -> position of that output.
WRITES_RESULT: Final = {"fsdp::all_gather_copy_in": 0}

_PREFIXES: Final = {
    "aten": "Aten",
    "prims": "Aten",  # the primitives that aten ops decompose into
    "npu": "NPU",
} | dict.fromkeys(TRANSFER_NAMESPACES, "Distributed")

# What a tensor subclass is asked for its geometry with.
_QUESTIONS: Final = frozenset(
    "aten::" + name
    for name in (
        *("dim", "size", "stride", "numel", "storage_offset", "is_contiguous", "is_strides_like_format"),
        *("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous"),
        "is_non_overlapping_and_dense",
    )
)


class OpPlan(NamedTuple):
    """How to record calls of one op."""

    name: CallName  # "aten::add_.Tensor", "Aten", "add_"
    arguments: tuple[str, ...]
    writes: tuple[tuple[int, str], ...]  # (position, name) of arguments written in place
    enabled_by: int | None  # position of the bool argument that enables those writes
    undefined_output: bool
    writes_inside: bool = False  # by in-place ops that it may run: see `write_counts`
    random: bool = False  # it may draw from a random generator
    collective: bool = False  # it starts, or waits for, a transfer: see `collectives`
    reads: bool = True  # False for views: they look at no element
    is_question: bool = False  # it asks a tensor subclass for its size or device, and computes nothing
    is_higher_order: bool = False
    reshapes: bool = False  # what it "writes" gets another shape or storage, no byte is written: t_, set_, resize_
    copies: bool = False  # elements as they are, also those of memory that nothing has written yet
    may_be_ahead: bool = False  # autograd runs it for an op in place that comes next
    moves: bool = False  # its first argument gets the memory of another tensor


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
    namespace, base, _ = parts = read_op_name(name)
    op = name if namespace else f"higher_order::{name}"
    prefix = _PREFIXES.get(namespace, "Custom" if namespace else "Aten")
    if schema is None:
        return OpPlan(CallName(op, prefix, base), (), (), None, False, is_higher_order=True)
    arguments = tuple(a.name for a in schema.arguments)
    writes = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    enabled_by = None
    undeclared = _UNDECLARED_WRITES.get(parts.without_overload)
    if undeclared is not None and len(writes) <= len(undeclared[0]):
        writes, enabled_by = tuple((i, arguments[i]) for i in undeclared[0]), undeclared[1]
    undefined_output = parts.without_overload in UNDEFINED_OUTPUT_OPS
    writes_inside = namespace == "aten" and base.startswith("_foreach_") and bool(writes)
    random = parts.without_overload in _UNDECLARED_DRAWS or _draws(func, schema)
    collective = namespace in TRANSFER_NAMESPACES or op in WRITES_RESULT
    reads = bool(writes) or collective or not any(a.alias_info is not None for a in schema.arguments)
    is_question = namespace == "prim" or parts.without_overload in _QUESTIONS
    return OpPlan(
        CallName(op, prefix, base),
        arguments,
        writes,
        enabled_by,
        undefined_output,
        writes_inside,
        random,
        collective,
        reads,
        is_question,
        reshapes=torch.Tag.inplace_view in getattr(func, "tags", ()),
        copies=name in _COPIES,
        may_be_ahead=name in _AHEAD_OF_OPS_IN_PLACE,
        moves=name in _MOVES,
    )


def _draws(func: Any, schema: Any) -> bool:
    """Return True if an op may draw random numbers: it says so, or takes a generator."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) or any(
        "Generator" in str(a.type) for a in schema.arguments
    )
