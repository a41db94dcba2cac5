"""The names of ops, ``namespace::name.overload``, and what they say: collectives, what is only written, workspaces."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from .records import Call, Op, Tree

# Ops that start a transfer and return before its result is there: somebody waits for it.
TRANSFER_NAMESPACES: Final = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
# Ops whose result other ranks have a part in: they cannot be run by one rank alone.
COLLECTIVE_NAMESPACES: Final = TRANSFER_NAMESPACES | {"c10d_functional", "_dtensor", "symm_mem"}

WAIT_TENSOR: Final = "_c10d_functional::wait_tensor"
LIFT_FRESH: Final = "aten::lift_fresh"  # torch.tensor(...): makes a tensor of literals
UNSCALE_GRADIENTS: Final = "aten::_amp_foreach_non_finite_check_and_unscale_"  # a gradient scaler's

# Ops that return memory nothing has written yet: what they return is flagged UNDEFINED.
UNDEFINED_OUTPUT_OPS: Final = frozenset(
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

# Calls that set every element of their first argument without a look at it, by `Op.api`.
_OVERWRITING: Final = frozenset(
    f"{prefix}{name}"
    for prefix, names in (
        ("", "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_"),
        ("_foreach_", "copy_ zero_"),
    )
    for name in names.split()
)
# The same of collectives that are given where to write, their first argument.
_RECEIVING: Final = frozenset(
    f"{name}_"
    for name in (
        *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "gather"),
        *("scatter", "alltoall", "alltoall_base", "reduce_scatter", "_reduce_scatter_base"),
        *("reduce_scatter_tensor_coalesced", "recv", "recv_any_source"),
    )
)
# Ops of other libraries' namespaces that are given where to write, in this argument.
# Those of an older torch lack it and make the memory themselves.
OUT_ARGUMENTS: Final = {"fsdp::all_gather_copy_in": "all_gather_output"}
_BEGINS: Final = "momentum_buffer_list"

# Results that are no data: workspaces and reserve buffers, in a library's own format, partly memory nobody wrote. Seeds
# and offsets of fused attention are among them: without dropout nothing writes them. Two equal runs leave other bytes
# there, NaN among them. Only the ops that read them can show whether they are right.
# op -> positions of such results
_WORKSPACES: Final[dict[str, frozenset[int]]] = {
    "aten::mkldnn_rnn_layer": frozenset({3}),
    "aten::_cudnn_rnn": frozenset({3, 4}),
    "aten::miopen_rnn": frozenset({3}),
    "aten::cudnn_batch_norm": frozenset({3}),
    "aten::_batch_norm_with_update": frozenset({3}),
    "aten::_batch_norm_with_update_functional": frozenset({3}),
    "aten::_ctc_loss": frozenset({1}),  # logarithms, of zero too; what lies beyond an input or target is not written
    "aten::_cudnn_ctc_loss": frozenset({1}),
    # Seed and offset of its dropout, for its backward, and the mask that a debugger may ask for.
    "npu::npu_fusion_attention_v3": frozenset({4, 5}),
    "aten::_scaled_dot_product_flash_attention": frozenset({6, 7, 8}),
    "aten::_scaled_dot_product_cudnn_attention": frozenset({6, 7, 8}),
    "aten::_scaled_dot_product_fused_attention_overrideable": frozenset({6, 7, 8}),
    "aten::_scaled_dot_product_efficient_attention": frozenset({2, 3}),
    "aten::_flash_attention_forward": frozenset({2, 3, 4}),
    "aten::_cudnn_attention_forward": frozenset({6, 7, 8}),
    "aten::_efficient_attention_forward": frozenset({2, 3}),
}
# op -> arguments of this kind that it writes
_WRITTEN: Final[dict[str, frozenset[str]]] = {
    "aten::_cudnn_rnn": frozenset({"dropout_state"}),
    "aten::_cudnn_rnn_backward": frozenset({"reserve"}),
}


class OpName(NamedTuple):
    """The parts of what a call calls; of anything but an op (an API, a module's class, a node) all is `name`."""

    namespace: str  # "aten"; empty where it is no op
    name: str  # "add_"
    overload: str = ""  # "Tensor"; empty for the default one

    @property
    def without_overload(self) -> str:
        """Return ``aten::add_`` for ``aten::add_.Tensor``."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


@lru_cache(maxsize=8192)
def read_op_name(op: str) -> OpName:
    """Return the parts of `Op.op`."""
    namespace, colons, rest = op.rpartition("::")
    if not colons:
        return OpName("", op)
    name, _, overload = rest.partition(".")
    return OpName(namespace, name, overload)


def is_collective(op: str) -> bool:
    """Return True if other ranks have a part in what an op returns."""
    return read_op_name(op).namespace in COLLECTIVE_NAMESPACES


def read_inputs(op: Op, call: Call, rank: int | None = None) -> list[Tree]:
    """Return the arguments of a call but those that it only writes to.

    Args:
        op: what it calls. What an aten op writes among its keywords is an ``out=`` of its.
        call: its record; what it wrote decides, so that a call that failed has read all.
        rank: that made it: of a broadcast all but the root only write.
    """
    args, kwargs = call.args, call.kwargs or {}
    if op.op in OUT_ARGUMENTS:
        return [tree for name, tree in zip(op.arguments, args, strict=False) if name != OUT_ARGUMENTS[op.op]]
    written = (call.written or [])[::2]
    if not written:
        return [*args, *kwargs.values()]
    name = read_op_name(op.op)
    receives = name.namespace == "c10d" and (name.name in _RECEIVING or _is_sent_by_another(op, call, rank))
    first = 1 if op.api in _OVERWRITING or receives else 0
    outs = set(written) if name.namespace == "aten" else {"out"}
    if kwargs.get("is_first_step") is True:  # of a fused SGD: its momentum begins as the gradient
        args = [tree for argument, tree in zip(op.arguments, args, strict=False) if argument != _BEGINS]
    return [*args[first:], *(tree for name, tree in kwargs.items() if name not in outs)]


def _is_sent_by_another(op: Op, call: Call, rank: int | None) -> bool:
    """Return True if a call is a broadcast of another rank's tensor."""
    if rank is None or read_op_name(op.op).name != "broadcast_":
        return False
    given = dict(zip(op.arguments, call.args, strict=False))
    group, root = given.get("process_group"), given.get("root_rank")
    items = group[1:] if type(group) is tuple else ()
    ranks = next((item for name, item in zip(items[::2], items[1::2], strict=False) if name == "ranks"), None)
    if type(ranks) is not tuple or type(root) is not int or not 0 <= root < len(ranks) - 1:
        return False
    return bool(ranks[1 + root] != rank)


def reads_no_elements(op: str) -> bool:
    """Return True if an op asks its tensors for shape, dtype and device alone, as ``zeros_like`` does."""
    name = read_op_name(op).name
    return name.endswith("_like") or name.startswith("new_")


def is_workspace(op: str, slot: str) -> bool:
    """Return True if a result of an op, by its slot (``output.3``, ``mutated.reserve``), is a workspace."""
    name = read_op_name(op).without_overload
    kind, _, rest = slot.partition(".")
    place = rest.partition(".")[0]
    if kind == "mutated":
        return place in _WRITTEN.get(name, ())
    return kind == "output" and place.isdigit() and int(place) in _WORKSPACES.get(name, ())
