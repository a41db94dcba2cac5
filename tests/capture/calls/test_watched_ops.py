"""Ops that write, draw or wait for others: looked at before and after they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist

from aten_dump.capture.calls.watched_ops import WatchedOp, watch
from aten_dump.capture.naming.call_name import CallName
from aten_dump.capture.step.collectives import Flight
from aten_dump.store import records as r
from tests.capture.calls.recorded_ops import Recorded

aten, functional = torch.ops.aten, torch.ops._c10d_functional
needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


def begin(recorded: Recorded, func: Any, *args: Any, **kwargs: Any) -> WatchedOp:
    op = watch(recorded.ops, recorded.thread, recorded.ops.entry_of(func), args, kwargs)
    assert op is not None
    return op


def run(recorded: Recorded, func: Any, *args: Any, **kwargs: Any) -> Any:
    op = begin(recorded, func, *args, **kwargs)
    result = func(*args, **kwargs)
    op.end(args, kwargs, result, None)
    return result


def flags(recorded: Recorded, tree: Any) -> int:
    found: int = next(value.flags for value in recorded.sink.of(r.VALUE) if value.id == tree[1])
    return found


def test_inputs_are_those_before_the_op_and_what_it_wrote_is_another_value() -> None:
    recorded, x = Recorded(data="tensor"), torch.ones(2)
    run(recorded, aten.add_.Scalar, x, 4)
    call = recorded.last()
    assert call.args == [(r.TREE_VALUE, 1), 4]
    assert call.written == ["self", (r.TREE_VALUE, 2)] and call.outputs == (r.TREE_VALUE, 2)
    assert [value.version for value in recorded.sink.of(r.VALUE)] == [0, 1]


def test_an_op_that_raised_has_written_nothing_that_can_be_told_but_may_have() -> None:
    recorded, x = Recorded(), torch.ones(2)
    op = begin(recorded, aten.add_.Scalar, x, 4)
    op.end((x, 4), {}, None, RuntimeError("stopped"))
    call = recorded.last()
    assert (call.written, call.outputs, call.error) == (None, None, "RuntimeError: stopped")
    recorded.run(aten.exp.default, x)
    assert recorded.last().args != call.args, "its memory is not trusted any more"


def test_a_write_that_is_left_out_is_a_write() -> None:
    recorded, x = Recorded(exclude_ops=("add_",)), torch.ones(2)
    first = recorded.values.value_of(x, False)
    run(recorded, aten.add_.Scalar, x, 4)
    assert recorded.ended() == [] and recorded.notes() == {"selection": 1}
    assert recorded.values.value_of(x, False) != first


def test_fresh_memory_is_undefined_and_so_is_a_clone_of_it() -> None:
    recorded = Recorded()
    x = run(recorded, aten.empty.memory_format, [3])
    assert flags(recorded, recorded.last().outputs) & r.UNDEFINED
    run(recorded, aten.clone.default, x)
    assert flags(recorded, recorded.last().outputs) & r.UNDEFINED
    run(recorded, aten.fill_.Scalar, x, 1.0)
    run(recorded, aten.clone.default, x)
    assert not flags(recorded, recorded.last().outputs) & r.UNDEFINED


def test_memory_of_an_empty_that_failed_is_nobody_s() -> None:
    recorded = Recorded()
    begin(recorded, aten.empty.memory_format, [3]).end(([3],), {}, None, RuntimeError("no memory"))
    assert recorded.last().error == "RuntimeError: no memory" and recorded.told.aloud == []


@pytest.mark.parametrize(("data", "states"), [("tensor", 1), ("structure", 0)])
def test_the_generator_s_state_is_kept_before_an_op_draws(data: str, states: int) -> None:
    recorded = Recorded(data=data)
    before = bytes(torch.get_rng_state().tolist())
    run(recorded, aten.rand.default, [2])
    found = recorded.sink.of(r.RANDOM)
    assert [random.call for random in found] == [recorded.last().id] * states
    assert all(recorded.sink.blobs[random.blob] == before for random in found)


def test_keywords_are_recorded_before_the_op_runs() -> None:
    recorded, x, out = Recorded(), torch.ones(2), torch.zeros(2)
    run(recorded, aten.add.out, x, x, out=out)
    call = recorded.last()
    assert call.kwargs is not None and call.written is not None
    assert call.kwargs["out"] != call.written[1]


def test_a_failure_of_the_recorder_lets_the_op_run_unrecorded() -> None:
    recorded = Recorded()
    recorded.thread.grad = True  # as it is: nothing to tell before the op
    recorded.fail()
    x = torch.ones(2)
    entry = recorded.ops.entry_of(aten.add_.Scalar)
    assert watch(recorded.ops, recorded.thread, entry, (x, 1), {}) is None
    assert [str(error) for error in recorded.told.aloud] == ["no room"] and recorded.thread.own.depth == 0


@pytest.mark.parametrize("what", ["aside", "compiled_nodes"])
def test_memory_that_compiled_code_may_have_written_is_not_trusted(what: str) -> None:
    recorded, x, unread = Recorded(), torch.ones(2), torch.ones(2)
    first, old = (recorded.values.value_of(tensor, False) for tensor in (x, unread))
    setattr(recorded.thread, what, 1)
    run(recorded, aten.exp.default, x)
    (second,) = recorded.last().args
    assert second != (r.TREE_VALUE, first), "nobody knows what it held when the compiled code began"
    run(recorded, aten.exp.default, x)
    assert recorded.last().args == [second], "it holds the same bytes"
    x.numpy()[...] = 3
    run(recorded, aten.exp.default, x)
    assert recorded.last().args != [second]
    run(recorded, aten.mul_.Scalar, x, 2)
    written = recorded.last().outputs
    run(recorded, aten.exp.default, x)
    assert recorded.last().args == [written], "an op that was seen wrote it"
    assert recorded.values.value_of(unread, False) == old


@needs_distributed
def test_the_record_of_a_collective_waits_for_its_result() -> None:
    recorded, x, result = Recorded(), torch.ones(2), torch.ones(2)
    args = (x, "sum", "nobody")
    begin(recorded, functional.all_reduce.default, *args).end(args, {}, result, None)
    assert recorded.ended() == [] and len(recorded.flights.pending) == 1
    wait = begin(recorded, functional.wait_tensor.default, result)
    wait.end((result,), {}, result, None)
    first, second = recorded.ended()
    assert (first.id < second.id, first.n, first.outputs) == (True, 0, second.outputs)
    assert not flags(recorded, first.outputs) & r.UNDEFINED


@needs_distributed
def test_collectives_are_numbered_as_they_start_whichever_lands_first() -> None:
    recorded = Recorded()
    results = [torch.ones(2), torch.ones(2)]
    for result in results:
        args = (torch.ones(2), "sum", "nobody")
        begin(recorded, functional.all_reduce.default, *args).end(args, {}, result, None)
    for result in reversed(results):
        recorded.flights.waited_tensor(result)
    assert [(call.id, call.n) for call in recorded.ended()] == [(2, 1), (1, 0)]


@needs_distributed
def test_a_collective_that_raised_is_not_in_flight() -> None:
    recorded, args = Recorded(), (torch.ones(2), "sum", "nobody")
    begin(recorded, functional.all_reduce.default, *args).end(args, {}, None, RuntimeError("no such group"))
    assert recorded.flights.pending == [] and recorded.last().error == "RuntimeError: no such group"


@needs_distributed
def test_a_collective_that_is_left_out_is_in_flight_all_the_same() -> None:
    recorded, args, result = Recorded(exclude_ops=("all_reduce",)), (torch.ones(2), "sum", "nobody"), torch.ones(2)
    begin(recorded, functional.all_reduce.default, *args).end(args, {}, result, None)
    assert len(recorded.flights.pending) == 1
    recorded.flights.waited_tensor(result)
    assert recorded.ended() == []


@needs_distributed
def test_a_collective_belongs_to_the_python_level_call_that_started_it() -> None:
    recorded, args, result = Recorded(), (torch.ones(2), "sum", "nobody"), torch.ones(2)
    call = recorded.under(CallName("all_reduce", "Distributed", "all_reduce"))
    begin(recorded, functional.all_reduce.default, *args).end(args, {}, result, None)
    assert recorded.flights.of_call(call) == recorded.flights.pending != []


@needs_distributed
@pytest.mark.parametrize(("func", "lands"), [(aten.exp.default, True), (aten.view.default, False)], ids=str)
def test_an_op_that_reads_lands_what_is_complete_and_a_view_reads_nothing(func: Any, lands: bool) -> None:
    recorded, x = Recorded(), torch.ones(2)
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([x])
    work = torch._C._distributed_c10d._create_work_from_future(future)
    recorded.flights.pending.append(Flight(work, {}, [x], None))
    run(recorded, func, *((x,) if lands else (x, [2])))
    assert (recorded.flights.pending == []) is lands


@needs_distributed
def test_the_group_of_a_functional_collective_is_spelt_out() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        recorded, result = Recorded(), torch.ones(2)
        name = dist.distributed_c10d._get_default_group().group_name
        args = (torch.ones(2), "sum", name)
        begin(recorded, functional.all_reduce.default, *args).end(args, {}, result, None)
        recorded.flights.waited_tensor(result)
        assert recorded.last().args[2][1:3] == ("group", name)
    finally:
        dist.destroy_process_group()
