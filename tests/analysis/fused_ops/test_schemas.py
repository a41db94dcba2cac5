"""Fused ops are run without the package that has them."""

from __future__ import annotations

import torch

from aten_dump.analysis.composed_ops import FUSED, composed
from aten_dump.analysis.fused_ops.schemas import fused_ops
from aten_dump.analysis.rerun.allowed_ops import allowed_op, registered_op


def test_each_op_with_a_reference_has_a_schema() -> None:
    assert fused_ops().keys() == FUSED.keys()


def test_an_op_that_nobody_registered_is_run_by_its_reference() -> None:
    op = allowed_op("npu::npu_swiglu")
    if registered_op("npu::npu_swiglu") is None:
        assert op is fused_ops()["npu::npu_swiglu"]
        assert composed(op, torch.device("meta")) is FUSED["npu::npu_swiglu"]
    assert composed(op, torch.device("cpu")) is FUSED["npu::npu_swiglu"]
    assert [argument.name for argument in op._schema.arguments] == ["input", "dim"]
