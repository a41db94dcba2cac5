"""What an op wrote is a new version of the memory; autograd's own count goes on as in the bare program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.capture.calls.watched_ops import note_writes
from aten_dump.capture.memory.storages import StorageState
from aten_dump.capture.naming.op_schemas import plan_of
from aten_dump.capture.values.value_table import ValueTable
from aten_dump.store import records as r
from tests.store.memory_sink import MemorySink

aten = torch.ops.aten


def state(values: ValueTable, tensor: torch.Tensor) -> StorageState:
    found = values.storages.state_of(tensor)
    assert found is not None
    return found


def versions(values: ValueTable, *tensors: torch.Tensor) -> list[int]:
    return [state(values, tensor).version for tensor in tensors]


def test_an_op_that_writes_nothing_begins_no_version(values: ValueTable) -> None:
    x, y = torch.ones(2), torch.ones(2)
    assert note_writes(plan_of(aten.add.Tensor), (x, y), {}, values, True) is None
    assert versions(values, x, y) == [0, 0]


def test_what_is_written_is_named_with_its_new_value(values: ValueTable, sink: MemorySink) -> None:
    x, y = torch.ones(2), torch.ones(2)
    before = values.value_of(x, False)
    written = note_writes(plan_of(aten.add_.Tensor), (x, y), {}, values, True)
    assert written == ["self", (r.TREE_VALUE, before + 1)] and versions(values, x, y) == [1, 0]
    assert sink.of(r.VALUE)[-1].version == 1


def test_a_write_of_a_call_that_is_not_recorded_is_a_version_without_a_value(
    values: ValueTable, sink: MemorySink
) -> None:
    x = torch.ones(2)
    assert note_writes(plan_of(aten.add_.Tensor), (x, 1), {}, values, None) is None
    assert versions(values, x) == [1] and sink.of(r.VALUE) == []


@pytest.mark.parametrize("keep", [True, False])
def test_the_data_of_what_was_written_is_kept_where_it_is_wanted(
    values: ValueTable, sink: MemorySink, keep: bool
) -> None:
    x = torch.ones(2)
    note_writes(plan_of(aten.fill_.Scalar), (x, 1.0), {}, values, keep)
    values._keeper.flush()
    assert len(sink.of(r.DATA)) == keep


def test_out_arguments_and_lists_are_written(values: ValueTable) -> None:
    x, out, a, b = (torch.ones(2) for _ in range(4))
    written = note_writes(plan_of(aten.add.out), (x, x), {"out": out}, values, True)
    assert written is not None and written[0] == "out" and versions(values, x, out) == [0, 1]
    written = note_writes(plan_of(aten._foreach_add_.Scalar), ([a, b], 1), {}, values, True)
    assert written is not None and (written[0], len(written[1])) == ("self", 3) and versions(values, a, b) == [1, 1]


def test_an_out_argument_that_is_not_given_is_not_named(values: ValueTable) -> None:
    x = torch.ones(2)
    assert note_writes(plan_of(aten.add.out), (x, x), {"out": None}, values, True) is None


@pytest.mark.parametrize(("training", "version"), [(True, 1), (False, 0)])
@pytest.mark.parametrize("by_name", [True, False])
def test_running_statistics_are_written_in_training_only(
    values: ValueTable, training: bool, version: int, by_name: bool
) -> None:
    x, mean, var = torch.randn(2, 3), torch.zeros(3), torch.ones(3)
    plan = plan_of(aten._batch_norm_impl_index.default)
    args: tuple[Any, ...] = (x, None, None, mean, var, training, 0.1, 1e-5, False)
    kwargs: dict[str, Any] = {}
    if by_name:
        args, kwargs = args[:5], dict(zip(plan.arguments[5:], args[5:], strict=True))
    written = note_writes(plan, args, kwargs, values, True)
    assert versions(values, x, mean, var) == [0, version, version]
    assert (written is not None) is training


def test_a_copy_of_memory_that_nothing_has_written_is_undefined_where_that_is(values: ValueTable) -> None:
    source, target = torch.empty(4), torch.ones(4)
    values.storages.undefined(source)
    values.storages.written(source[:2])
    note_writes(plan_of(aten.copy_.default), (target, source), {}, values, True)
    written = state(values, target).written
    assert written is not None
    assert [bool(values_flags(values, part) & r.UNDEFINED) for part in (target[:2], target[2:])] == [False, True]
    note_writes(plan_of(aten.copy_.default), (target, torch.ones(4)), {}, values, True)
    assert state(values, target).written is None


def values_flags(values: ValueTable, tensor: torch.Tensor) -> int:
    return values._keeper.marks[values.value_of(tensor, False)]


def test_another_shape_is_no_write(values: ValueTable) -> None:
    x = torch.ones(2, 3)
    note_writes(plan_of(aten.t_.default), (x,), {}, values, True)
    assert versions(values, x) == [0]
    x.untyped_storage().resize_(0)
    note_writes(plan_of(aten.resize_.default), (x, [2]), {}, values, True)
    assert versions(values, x) == [1], "the storage is another size now"
