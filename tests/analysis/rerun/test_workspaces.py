"""Results that are no data."""

from __future__ import annotations

import pytest
import torch

from aten_dump.analysis.rerun.workspaces import is_workspace

_SEEDS = {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"}


def test_of_fused_attention_they_are_the_seeds_and_the_debugger_s_mask() -> None:
    for op in ("flash", "efficient", "cudnn", "fused"):
        for schema in torch._C._jit_get_all_schemas():
            if f"{op}_attention" in schema.name and "for_cpu" not in schema.name and schema.returns[-1].name in _SEEDS:
                for position, found in enumerate(schema.returns):
                    assert is_workspace(schema.name, f"output.{position}") == (found.name in _SEEDS), (schema, found)


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
        ("aten::_cudnn_rnn", "mutated.dropout_state", True),
        ("aten::_cudnn_rnn_backward", "mutated.reserve", True),
        ("aten::_cudnn_rnn_backward", "output.0", False),
        ("aten::add_", "mutated.self", False),
        ("aten::_scaled_dot_product_flash_attention", "output.0", False),
        ("aten::_scaled_dot_product_flash_attention", "output.1", False),
        ("aten::_scaled_dot_product_flash_attention", "output.6", True),
        ("aten::_scaled_dot_product_efficient_attention", "output.1", False),
        ("aten::_scaled_dot_product_efficient_attention", "output.3", True),
    ],
)
def test_workspaces_by_op_and_position(op: str, slot: str, is_one: bool) -> None:
    assert is_workspace(op, slot) == is_one
