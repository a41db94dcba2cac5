"""Results that are no data."""

from __future__ import annotations

import pytest

from aten_dump.analysis.rerun.workspaces import is_workspace


@pytest.mark.parametrize(
    ("op", "slot", "is_one"),
    [
        ("aten::mkldnn_rnn_layer", "output.3", True),
        ("aten::mkldnn_rnn_layer", "output.0", False),
        ("aten::mkldnn_rnn_layer", "output.1", False),
        ("aten::mkldnn_rnn_layer", "output.2", False),
        ("aten::mkldnn_rnn_layer", "output.3.weight", True),
        ("aten::_cudnn_rnn", "output.3", True),
        ("aten::_cudnn_rnn", "output.4", True),
        ("aten::_cudnn_rnn", "output.5", False),
        ("aten::_batch_norm_with_update.out", "output.3", True),
        ("aten::_batch_norm_with_update", "input.3", False),
        ("aten::_batch_norm_with_update", "mutated.3", False),
        ("aten::_batch_norm_with_update", "output.x", False),
        ("aten::native_batch_norm", "output.3", False),
        ("aten::_ctc_loss.Tensor", "output.1", True),
        ("aten::_ctc_loss", "output.0", False),
        ("mine::_cudnn_rnn", "output.3", False),
    ],
)
def test_workspaces_by_op_and_position(op: str, slot: str, is_one: bool) -> None:
    assert is_workspace(op, slot) == is_one
