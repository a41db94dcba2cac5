"""The parts of op names, and which namespaces belong to collectives."""

from __future__ import annotations

import pytest
import torch

from aten_dump.store.op_names import (
    COLLECTIVE_NAMESPACES,
    LIFT_FRESH,
    UNSCALE_GRADIENTS,
    WAIT_TENSOR,
    is_collective,
    is_workspace,
    read_inputs,
    read_op_name,
    reads_no_elements,
)
from aten_dump.store.records import CALL, OP, TREE_VALUE, Call, Op


@pytest.mark.parametrize(
    ("op", "parts", "bare"),
    [
        ("aten::add_.Tensor", ("aten", "add_", "Tensor"), "aten::add_"),
        ("aten::relu", ("aten", "relu", ""), "aten::relu"),
        ("_c10d_functional::all_reduce", ("_c10d_functional", "all_reduce", ""), "_c10d_functional::all_reduce"),
        ("higher_order::flex_attention", ("higher_order", "flex_attention", ""), "higher_order::flex_attention"),
        ("torch.nn.functional.linear", ("", "torch.nn.functional.linear", ""), "torch.nn.functional.linear"),
        ("AddmmBackward0", ("", "AddmmBackward0", ""), "AddmmBackward0"),
        ("", ("", "", ""), ""),
    ],
)
def test_the_parts_of_a_name(op: str, parts: tuple[str, str, str], bare: str) -> None:
    assert read_op_name(op) == parts
    assert read_op_name(op).without_overload == bare


def test_every_op_of_torch_is_put_together_again() -> None:
    for schema in torch._C._jit_get_all_schemas():
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        namespace, name, overload = read_op_name(full)
        assert (f"{namespace}::{name}", overload) == (schema.name, schema.overload_name)


@pytest.mark.parametrize("namespace", sorted(COLLECTIVE_NAMESPACES))
def test_collectives_are_known_by_their_namespace(namespace: str) -> None:
    assert is_collective(f"{namespace}::all_gather.out")
    assert not is_collective(f"aten::{namespace}")
    assert not is_collective(f"{namespace}.all_gather")


def test_the_ops_that_are_named_exist() -> None:
    for op in (WAIT_TENSOR, LIFT_FRESH, UNSCALE_GRADIENTS):
        namespace, name, _ = read_op_name(op)
        assert hasattr(getattr(torch.ops, namespace), name), op


@pytest.mark.parametrize(
    ("op", "api", "read"),
    [
        ("aten::add_.Tensor", "add_", [1, 2]),
        ("aten::copy_", "copy_", [2]),
        ("c10d::allgather_", "allgather_", [2]),
        ("c10d::_reduce_scatter_base_", "_reduce_scatter_base_", [2]),
        ("c10d::recv_", "recv_", [2]),
        ("c10d::allreduce_", "allreduce_", [1, 2]),
        ("mylib::recv_", "recv_", [1, 2]),
    ],
)
def test_what_a_call_only_writes_to_it_does_not_read(op: str, api: str, read: list[int]) -> None:
    args = [[TREE_VALUE, 1], [TREE_VALUE, 2]]
    call = Call(CALL, 1, 0, 1, 0, 0, 0, 0, 0, 0, None, 0, 0, 0, args, None, None, ["self", [TREE_VALUE, 3]], None)
    record = Op(OP, 1, 0, op, "Aten", api, ["self", "src"])
    assert [tree[1] for tree in read_inputs(record, call)] == read
    assert read_inputs(record, call._replace(written=None)) == args, "it failed, and may have read all"


def test_the_collectives_that_receive_exist() -> None:
    from aten_dump.store import op_names

    assert [name for name in op_names._RECEIVING if not hasattr(torch.ops.c10d, name)] == []


def test_ops_that_ask_for_a_shape_alone() -> None:
    assert [reads_no_elements(f"aten::{name}") for name in ("zeros_like", "new_full", "add.Tensor")] == [
        True,
        True,
        False,
    ]


_SEEDS = {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"}


def test_of_fused_attention_they_are_the_seeds_and_the_debugger_s_mask() -> None:
    told: set[str] = set()
    for op in ("flash", "efficient", "cudnn", "fused"):
        for schema in torch._C._jit_get_all_schemas():
            if f"{op}_attention" in schema.name and "for_cpu" not in schema.name and schema.returns[-1].name in _SEEDS:
                told.add(op)
                for position, found in enumerate(schema.returns):
                    assert is_workspace(schema.name, f"output.{position}") == (found.name in _SEEDS), (schema, found)
    assert told >= {"flash", "efficient"}


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
