"""Results that are no data: workspaces and reserve buffers, in a library's own format, partly memory nobody wrote.

Two equal runs leave other bytes there. Only the ops that read them can tell whether they are right.
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
    "npu::npu_fusion_attention_v3": frozenset({4, 5}),  # seed and offset of its dropout, for its backward
}


def is_workspace(op: str, slot: str) -> bool:
    """Tell whether a result of an op, by its slot (``output.3``), is a workspace."""
    positions = _WORKSPACES.get(read_op_name(op).without_overload)
    if not positions or not slot.startswith("output."):
        return False
    position = slot.split(".")[1]
    return position.isdigit() and int(position) in positions
