"""Fused ops are run without the package that has them."""

from __future__ import annotations

import torch

from aten_dump.analysis.composed_ops import composed, fused_ops
from aten_dump.analysis.rerun.allowed_ops import allowed_op, registered_op
from aten_dump.references import fsdp, npu


def test_each_op_with_a_reference_has_a_schema() -> None:
    assert fused_ops().keys() == npu.REFERENCES.functions.keys() | fsdp.REFERENCES.functions.keys()


def test_an_op_that_nobody_registered_is_run_by_its_reference() -> None:
    op = allowed_op("npu::npu_swiglu")
    if registered_op("npu::npu_swiglu") is None:
        assert op is fused_ops()["npu::npu_swiglu"]
        assert composed(op, torch.device("meta")) is npu.REFERENCES.functions["npu::npu_swiglu"]
    assert composed(op, torch.device("cpu")) is npu.REFERENCES.functions["npu::npu_swiglu"]
    assert [argument.name for argument in op._schema.arguments] == ["input", "dim"]
