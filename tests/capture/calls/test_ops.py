"""Aten ops, one record each when they have run; which are to be watched closely."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.calls.ops import PendingOp
from aten_dump.capture.naming.call_name import CallName
from aten_dump.capture.step.collectives import Flight
from aten_dump.capture.step.threads import output_of
from aten_dump.store import records as r
from tests.capture.calls.recorded_ops import Recorded

aten = torch.ops.aten
ADD = CallName("torch.add", "Torch", "add")


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def start(recorded: Recorded, func: Any = aten.exp.default, types: Any = ()) -> PendingOp | None:
    return recorded.ops.start(recorded.thread, func, types)


def test_an_op_is_recorded_with_what_it_was_given_and_returned() -> None:
    recorded, x = Recorded(), torch.ones(2)
    y = recorded.run(aten.add.Tensor, x, 3, alpha=2)
    call = recorded.last()
    assert call.args == [(r.TREE_VALUE, 1), 3] and call.kwargs == {"alpha": 2}
    assert call.outputs == (r.TREE_VALUE, 2) and (call.error, call.written, call.parent) == (None, None, 0)
    assert [value.shape for value in recorded.sink.of(r.VALUE)] == [(2,), (2,)]
    (op,) = recorded.sink.of(r.OP)
    assert (op.op, op.prefix, op.api, op.arguments) == ("aten::add.Tensor", "Aten", "add", ["self", "other", "alpha"])
    assert output_of(recorded.thread, y, 0) == call.outputs and recorded.thread.last_call == call.id
    assert output_of(recorded.thread, x, 0) is None and output_of(recorded.thread, y, call.id) is None


def test_calls_of_an_op_are_numbered_and_the_op_is_told_of_once() -> None:
    recorded, x = Recorded(), torch.ones(2)
    for _ in range(3):
        recorded.run(aten.exp.default, x)
    assert [call.n for call in recorded.ended()] == [0, 1, 2]
    assert len(recorded.sink.of(r.OP)) == 1 and recorded.step.calls == 3
    assert recorded.ended()[0].args == recorded.ended()[2].args, "the same value"


def test_several_results_are_a_tree() -> None:
    recorded = Recorded()
    x = recorded.run(aten.exp.default, torch.ones(2))
    found = recorded.run(aten.aminmax.default, x)
    assert recorded.last().outputs == (r.TREE_TUPLE, (r.TREE_VALUE, 3), (r.TREE_VALUE, 4))
    assert [output_of(recorded.thread, one, 0) for one in (x, *found)] == [None, None, None]


def test_what_is_detached_is_the_same_value_and_the_op_before_it_still_the_last_that_made_one() -> None:
    recorded, x = Recorded(), torch.ones(2)
    y = recorded.run(aten.tanh.default, x)
    detached = recorded.run(aten.detach.default, y)
    made, taken = recorded.ended()
    assert taken.args == [made.outputs] and taken.outputs == made.outputs == (r.TREE_VALUE, 2)
    assert output_of(recorded.thread, y, 0) == made.outputs and output_of(recorded.thread, detached, 0) is None
    other = recorded.run(aten.detach.default, x)
    assert recorded.last().outputs == (r.TREE_VALUE, 1)
    assert output_of(recorded.thread, other, 0) == (r.TREE_VALUE, 1) and output_of(recorded.thread, y, 0) is None


@pytest.mark.parametrize("io", ["all", "input", "output"])
def test_what_is_detached_is_kept_as_any_result(io: str) -> None:
    recorded = Recorded(io=io, data="tensor")
    recorded.run(aten.detach.default, torch.ones(2))
    recorded.values._keeper.flush()
    assert {data.value for data in recorded.sink.of(r.DATA)} == {1}


def test_an_op_that_raised_says_what() -> None:
    recorded, x = Recorded(), torch.ones(2)
    op = start(recorded)
    assert op is not None
    op.end((x,), {}, None, RuntimeError("no kernel"))
    assert (recorded.last().error, recorded.last().outputs) == ("RuntimeError: no kernel", None)


@pytest.mark.parametrize(
    "func", [aten.add_.Tensor, aten.empty.memory_format, torch.ops.c10d.broadcast_.default], ids=str
)
def test_an_op_that_may_be_more_is_watched(func: Any) -> None:
    recorded = Recorded()
    assert start(recorded, func) is None and recorded.step.next_id() == 1, "it has taken no id"


@pytest.mark.parametrize("what", ["aside", "compiled_nodes"])
def test_every_op_is_watched_while_compiled_code_runs(what: str) -> None:
    recorded = Recorded()
    setattr(recorded.thread, what, 1)
    assert start(recorded) is None
    setattr(recorded.thread, what, 0)
    assert start(recorded) is not None


def test_every_op_is_watched_while_a_collective_is_in_flight() -> None:
    recorded = Recorded()
    recorded.flights.pending.append(Flight(None, {}, [torch.ones(1)], None))
    assert start(recorded) is None


def test_every_op_is_watched_under_other_modes_and_tracers_and_on_subclasses() -> None:
    recorded = Recorded()
    with Passing():
        assert start(recorded) is None
    seen: list[Any] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        seen.append(start(recorded))
        return x + 1

    torch.jit.trace(traced, torch.ones(1), check_trace=False)
    assert seen == [None]
    assert start(recorded, types=(Wrapped,)) is None
    assert start(recorded, types=(torch.nn.Parameter,)) is not None


def test_an_op_has_the_node_that_it_made() -> None:
    recorded, x = Recorded(), torch.ones(2, requires_grad=True)
    y = x.exp()
    op = start(recorded)
    assert op is not None and y.grad_fn is not None
    op.end((x,), {}, y.detach(), None)
    assert recorded.last().sequence_nr == y.grad_fn._sequence_nr()
    recorded.run(aten.exp.default, torch.ones(2))
    assert recorded.last().sequence_nr is None


def test_a_clone_of_what_has_no_gradient_leaves_the_node_to_the_op_it_is_made_for() -> None:
    for grad in (False, True):
        recorded, x = Recorded(), torch.ones(2, requires_grad=True)
        y = x.exp()
        op = start(recorded, aten.clone.default)
        assert op is not None and y.grad_fn is not None
        op.end((x if grad else x.detach(),), {}, torch.ones(2), None)
        assert recorded.last().sequence_nr == (y.grad_fn._sequence_nr() if grad else None)


def test_a_clone_of_memory_that_nothing_has_written_is_undefined() -> None:
    recorded, x = Recorded(), torch.empty(2)
    recorded.values.storages.undefined(x)
    recorded.run(aten.clone.default, x)
    recorded.run(aten.exp.default, x)
    flags = {value.id: value.flags & r.UNDEFINED for value in recorded.sink.of(r.VALUE)}
    assert flags == {1: r.UNDEFINED, 2: r.UNDEFINED, 3: 0}


def test_nothing_is_recorded_of_an_op_that_ends_when_recording_has_stopped() -> None:
    recorded = Recorded()
    op = start(recorded)
    assert op is not None
    recorded.step.is_on = False
    op.end((torch.ones(1),), {}, torch.ones(1), None)
    assert [record[0] for record in recorded.sink.records] == [r.MODE]


def test_an_op_that_is_left_out_is_counted_and_takes_no_number() -> None:
    recorded, x = Recorded(exclude_ops=("exp",)), torch.ones(2)
    recorded.run(aten.exp.default, x)
    assert [record[0] for record in recorded.sink.records] == [r.MODE] and recorded.notes() == {"selection": 1}
    recorded.run(aten.sin.default, x)
    assert recorded.last().n == 0


@pytest.mark.parametrize(("io", "kept"), [("all", {1, 2}), ("input", {1}), ("output", {2})])
def test_the_data_of_inputs_and_results_is_kept_as_asked(io: str, kept: set[int]) -> None:
    recorded = Recorded(io=io, data="tensor")
    recorded.run(aten.exp.default, torch.ones(2))
    recorded.values._keeper.flush()
    assert {data.value for data in recorded.sink.of(r.DATA)} == kept


def test_the_very_arguments_of_the_call_around_it_are_taken_over_until_something_runs() -> None:
    recorded, x = Recorded(), torch.ones(2)
    recorded.under(ADD, raw=(x,), args=["known"])
    recorded.run(aten.exp.default, x)
    assert recorded.last().args == ["known"]
    recorded.run(aten.exp.default, x)
    assert recorded.last().args == [(r.TREE_VALUE, 2)], "an op has run: it might have written"


def test_a_failure_of_the_recorder_is_told_and_beside_the_program_s_error_quietly() -> None:
    recorded = Recorded()
    recorded.thread.grad = True  # as it is: nothing to tell before the op
    recorded.fail()
    recorded.run(aten.exp.default, torch.ones(2))
    assert [str(error) for error in recorded.told.aloud] == ["no room"] and recorded.told.quietly == []
    op = start(recorded)
    assert op is not None
    op.end((torch.ones(1),), {}, None, RuntimeError("the program's"))
    assert len(recorded.told.aloud) == 1 and len(recorded.told.quietly) == 1


def test_an_entry_is_made_once_in_a_step() -> None:
    recorded = Recorded()
    entry = recorded.ops.entry_of(aten.exp.default)
    assert recorded.ops.entry_of(aten.exp.default) is entry
    assert recorded.ops.entry_of(aten.exp.out) is not entry
