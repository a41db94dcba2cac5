"""Results that are no data: workspaces and reserve buffers, in a library's own format, partly memory nobody wrote.

Seeds and offsets of fused attention are among them: without dropout nothing writes them. Two equal runs leave other
bytes there. Only the ops that read them can tell whether they are right.
"""

from __future__ import annotations

from typing import Final

from ...store.op_names import read_op_name

# op -> positions of such results
_WORKSPACES: Final[dict[str, frozenset[int]]] = {
    "aten::mkldnn_rnn_layer": frozenset({3}),
    "aten::_cudnn_rnn": frozenset({3, 4}),
    "aten::miopen_rnn": frozenset({3}),
    "aten::cudnn_batch_norm": frozenset({3}),
    "aten::_batch_norm_with_update": frozenset({3}),
    "aten::_batch_norm_with_update_functional": frozenset({3}),
    "aten::_ctc_loss": frozenset({1}),  # what lies beyond the length of an input or target is not written
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


def is_workspace(op: str, slot: str) -> bool:
    """Tell whether a result of an op, by its slot (``output.3``, ``mutated.reserve``), is a workspace."""
    name = read_op_name(op).without_overload
    kind, _, rest = slot.partition(".")
    place = rest.partition(".")[0]
    if kind == "mutated":
        return place in _WRITTEN.get(name, ())
    return kind == "output" and place.isdigit() and int(place) in _WORKSPACES.get(name, ())
