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
    read_op_name,
)


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
