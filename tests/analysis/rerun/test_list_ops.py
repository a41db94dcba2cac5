"""Ops on lists that treat each item by itself."""

from __future__ import annotations

import pytest

from aten_dump.analysis.flow.data_flow import item_of, works_by_item
from aten_dump.store.op_names import UNSCALE_GRADIENTS


@pytest.mark.parametrize(
    ("op", "by_item"),
    [
        ("aten::_foreach_mul.Scalar", True),
        ("aten::_foreach_add_.List", True),
        ("aten::_fused_adamw_", True),
        ("aten::_fused_adam_.tensor_lr", True),
        ("aten::_fused_sgd_", True),
        ("aten::_fused_adagrad_", True),
        (UNSCALE_GRADIENTS, True),
        ("aten::_fused_rms_norm", False),
        ("aten::_fused_dropout", False),
        ("aten::stack", False),
        ("aten::foreach", False),
        ("mine::_foreach_mul", True),
    ],
)
def test_which_work_by_item(op: str, by_item: bool) -> None:
    assert works_by_item(op) == by_item
    assert item_of(op, "output.3") == (3 if by_item else None)


@pytest.mark.parametrize(
    ("slot", "item"),
    [
        ("output.0", 0),
        ("output.12", 12),
        ("output", None),
        ("input.1.3", 3),
        ("input.1", None),
        ("mutated.self.2", 2),
        ("mutated.self", None),
        ("input.alpha.x", None),
        ("input.found_inf", None),
    ],
)
def test_the_item_of_a_slot(slot: str, item: int | None) -> None:
    assert item_of("aten::_foreach_mul.List", slot) == item
    assert item_of("aten::stack", slot) is None
