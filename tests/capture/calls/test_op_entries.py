"""Which ops are recorded in one go when they have run, and which are looked at before and after."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.capture.calls.op_entries import new_entry
from aten_dump.capture.step.call_counters import CallCounters

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "is_simple"),
    [
        (aten.add.Tensor, True),
        (aten.view.default, True),
        (aten.clone.default, True),
        (aten.add_.Tensor, False),
        (aten.add.out, False),
        (aten.empty.memory_format, False),
        (aten.native_batch_norm.default, False),
        (aten.sym_size.int, False),
        (torch.ops.prims.add.default, True),
        (torch.ops.prim.device.default, False),
        (torch.ops._c10d_functional.all_reduce.default, False),
        (torch.ops.quantized.add.default, False),
        (torch.ops.higher_order.cond, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("keeps_random_states", [True, False])
def test_only_aten_ops_that_write_nothing_and_wait_for_nothing_are_simple(
    func: Any, is_simple: bool, keeps_random_states: bool
) -> None:
    assert new_entry(func, CallCounters(), keeps_random_states).is_simple is is_simple


@pytest.mark.parametrize("func", [aten.rand.default, aten.native_dropout.default, aten.bernoulli.default], ids=str)
def test_an_op_that_draws_is_watched_only_where_the_generator_s_state_is_kept(func: Any) -> None:
    assert new_entry(func, CallCounters(), False).is_simple
    assert not new_entry(func, CallCounters(), True).is_simple


def test_overloads_count_on_together_and_each_has_its_entry() -> None:
    counters = CallCounters()
    first, second = new_entry(aten.add.Tensor, counters, False), new_entry(aten.add.Scalar, counters, False)
    assert first.counter is second.counter and first.func is not second.func
    assert first.number == second.number == 0
