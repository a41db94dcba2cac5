"""What is known of ops from their schemas."""

from __future__ import annotations

import pytest
import torch

from aten_dump.capture.naming.op_schemas import OpPlan, plan_of
from aten_dump.store.op_names import TRANSFER_NAMESPACES, read_op_name

aten = torch.ops.aten


def test_names_are_parts_of_the_op() -> None:
    plan = plan_of(aten.add_.Tensor)
    assert plan.name == ("aten::add_.Tensor", "Aten", "add_")
    assert plan.arguments == ("self", "other", "alpha")
    assert plan_of(torch.ops.higher_order.cond).name == ("higher_order::cond", "Aten", "cond")
    assert plan_of(torch.ops.higher_order.cond).is_higher_order


@pytest.mark.parametrize(
    ("op", "writes"),
    [
        (aten.add.Tensor, ()),
        (aten.add_.Tensor, ((0, "self"),)),
        (aten.add.out, ((3, "out"),)),
        (aten._foreach_add_.Scalar, ((0, "self"),)),
        (aten.native_batch_norm.default, ((3, "running_mean"), (4, "running_var"))),
        (aten.batch_norm.default, ((3, "running_mean"), (4, "running_var"))),
        (aten.instance_norm.default, ((3, "running_mean"), (4, "running_var"))),
        (aten.batch_norm_update_stats.default, ((1, "running_mean"), (2, "running_var"))),
        (aten.rrelu_with_noise.default, ((1, "noise"),)),
        (aten._cudnn_rnn.default, ((15, "dropout_state"),)),
        (aten._cudnn_rnn_backward.default, ((20, "reserve"),)),
    ],
)
def test_what_an_op_writes(op: torch._ops.OpOverload, writes: tuple[tuple[int, str], ...]) -> None:
    assert plan_of(op).writes == writes


def test_writes_that_a_flag_enables() -> None:
    plan = plan_of(aten.native_batch_norm.default)
    assert plan.enabled_by is not None
    assert plan.arguments[plan.enabled_by] == "training"
    assert plan_of(aten.add_.Tensor).enabled_by is None
    for op, flag in ((aten.batch_norm.default, "training"), (aten.instance_norm.default, "use_input_stats")):
        plan = plan_of(op)
        assert plan.enabled_by is not None and plan.arguments[plan.enabled_by] == flag
    plan = plan_of(aten._cudnn_rnn.default)
    assert plan.enabled_by is not None and plan.arguments[plan.enabled_by] == "train"


@pytest.mark.parametrize(
    ("field", "with_it", "without"),
    [
        ("undefined_output", aten.empty.memory_format, aten.zeros.default),
        ("writes_inside", aten._foreach_add_.Scalar, aten.add_.Tensor),
        ("random", aten.bernoulli.default, aten.relu.default),
        ("random", aten.native_dropout.default, aten.mul.Tensor),
        ("reads", aten.relu.default, aten.view.default),
        ("is_question", torch.ops.aten.sym_size.int, aten.sum.default),
        ("is_question", torch.ops.prim.device.default, aten.sum.default),
        ("reshapes", aten.t_.default, aten.relu_.default),
        ("reshapes", aten.resize_.default, aten.zero_.default),
        ("copies", aten.clone.default, aten.relu.default),
        ("copies", aten._to_copy.default, aten.detach.default),
        ("collective", torch.ops._c10d_functional.wait_tensor.default, aten.relu.default),
    ],
)
def test_facts_of_ops(field: str, with_it: torch._ops.OpOverload, without: torch._ops.OpOverload) -> None:
    assert getattr(plan_of(with_it), field)
    assert not getattr(plan_of(without), field)


def test_every_op_that_starts_a_transfer_is_a_collective() -> None:
    for schema in torch._C._jit_get_all_schemas():
        namespace = read_op_name(schema.name).namespace
        if namespace not in TRANSFER_NAMESPACES:
            continue
        packet = getattr(getattr(torch.ops, namespace), schema.name.partition("::")[2])
        plan: OpPlan = plan_of(getattr(packet, schema.overload_name or "default"))
        assert plan.collective and plan.reads and plan.name.prefix == "Distributed", schema.name


def test_ops_of_other_packages_are_custom() -> None:
    library = torch.library.Library("aten_dump_test_naming", "DEF")
    library.define("scale(Tensor x, float by) -> Tensor")
    plan = plan_of(torch.ops.aten_dump_test_naming.scale.default)
    assert plan.name == ("aten_dump_test_naming::scale", "Custom", "scale")
    library._destroy()
