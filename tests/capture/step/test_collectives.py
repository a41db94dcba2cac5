"""Collectives in flight: their memory is undefined and their records wait until the result is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist

from aten_dump.capture.memory.storage_table import StorageTable
from aten_dump.capture.memory.storages import StorageState
from aten_dump.capture.naming.call_name import API, CallName
from aten_dump.capture.naming.op_schemas import plan_of
from aten_dump.capture.step.collectives import Flight, Flights, name_group
from aten_dump.capture.step.open_calls import OpenCall
from aten_dump.store.records import NOTE
from tests.store.memory_sink import MemorySink

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
c10d, functional = torch.ops.c10d, torch.ops._c10d_functional


def work() -> tuple[Any, Any]:
    """A Work of torch's own, and the future that completes it."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    return torch._C._distributed_c10d._create_work_from_future(future), future


class Step:
    """Flights over a table of storages, and the records that were written."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.storages = StorageTable(lambda state, device: None, lambda *told: None)
        self.flights = Flights(self.storages, self.sink.emit)
        self.written: list[str] = []

    def state(self, tensor: torch.Tensor) -> StorageState:
        state = self.storages.state_of(tensor)
        assert state is not None
        return state

    def is_defined(self, tensor: torch.Tensor) -> bool:
        written = self.state(tensor).written
        return written is None or not written.in_flight

    def depart(self, tensor: torch.Tensor, of: Any = None, name: str = "record") -> Flight:
        """Start a transfer into `tensor` by hand, with one record that waits for it."""
        flight = Flight(of, {"tensor": tensor}, [tensor], None)
        flight.finishers.append(lambda: self.written.append(name))
        self.flights.pending.append(flight)
        self.flights._hide(flight)
        return flight


@pytest.fixture
def step() -> Any:
    step = Step()
    yield step
    step.storages.clear()


def test_memory_in_flight_is_undefined_until_it_lands(step: Step) -> None:
    x = torch.ones(4)
    version = step.state(x).version
    flight = step.depart(x)
    assert not step.is_defined(x) and step.written == []
    step.flights.land(flight)
    assert step.is_defined(x) and step.written == ["record"] and step.state(x).version > version
    step.flights.land(flight)
    assert step.written == ["record"], "another thread waited for it too"


def test_wait_tensor_lands_what_shares_bytes_with_its_argument(step: Step) -> None:
    x, other = torch.ones(8), torch.ones(8)
    step.depart(x[:4], name="low")
    step.depart(x[4:], name="high")
    step.flights.waited_tensor(other)
    step.flights.waited_tensor(None)
    assert step.written == []
    step.flights.waited_tensor(x[6:])
    assert step.written == ["high"]
    step.flights.waited_tensor(x[3:5])
    assert step.written == ["high", "low"]


def test_bytes_that_meet_but_do_not_overlap_are_not_shared() -> None:
    x = torch.ones(8)
    flight = Flight(None, {}, [x[2:5]], None)
    assert [flight.touches(part) for part in (x[:2], x[5:], x[:3], x[4:], x[2:2])] == [False, False, True, True, False]


def test_a_sparse_tensor_is_touched_by_itself_and_by_its_parts() -> None:
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (3,), is_coalesced=True, check_invariants=False)
    flight = Flight(None, {}, [sparse], None)
    assert flight.touches(sparse) and flight.touches(sparse.values())
    assert not flight.touches(torch.eye(2).to_sparse())


def test_an_op_that_reads_lands_only_what_is_complete(step: Step) -> None:
    x = torch.ones(4)
    mine, future = work()
    step.depart(x, mine)
    step.flights.reading((x,), {})
    assert step.written == []
    future.set_result([x])
    step.flights.reading((torch.ones(4),), {})
    assert step.written == [], "it reads other memory"
    step.flights.reading(([x[1:2]],), {})
    assert step.written == ["record"]


def test_a_keyword_is_read_too(step: Step) -> None:
    x = torch.ones(4)
    mine, future = work()
    future.set_result([x])
    step.depart(x, mine)
    step.flights.reading((), {"input": x})
    assert step.written == ["record"]


def test_only_wait_tensor_ends_a_functional_collective_and_a_thread_that_waits_ends_its_own(step: Step) -> None:
    x = torch.ones(4)
    assert not step.depart(x).complete()
    mine, future = work()
    future.set_result([x])
    flight = step.depart(x, mine)
    flight.waiting = 1
    assert not flight.complete()
    flight.waiting = 0
    assert flight.complete()


def test_a_backward_lands_what_no_python_code_can_wait_for(step: Step) -> None:
    """The Work that the program holds is its own to wait for, though it is complete."""
    x, y = torch.ones(4), torch.ones(4)
    held, future = work()
    future.set_result([x])
    step.depart(x, held, "held")
    step.depart(y, None, "functional")
    dropped = step.depart(y, _completed(y), "dropped")
    assert dropped.belongs_to_cpp()
    step.flights.backward_ended([x, y])
    assert step.written == ["dropped"]


def _completed(tensor: torch.Tensor) -> Any:
    mine, future = work()
    future.set_result([tensor])
    return mine


def test_what_nobody_waited_for_is_written_at_the_end_and_told_of(step: Step) -> None:
    x, y = torch.ones(4), torch.ones(4)
    held, _ = work()
    flight = step.depart(x, held, "held")
    step.depart(y, None, "functional")
    step.flights.close()
    assert step.written == ["held", "functional"] and step.flights.pending == []
    assert [(note.code, note.count) for note in step.sink.of(NOTE)] == [("in_flight", 2)]
    assert not step.is_defined(x)
    assert step.flights.left == [flight], "of functional ones nobody can wait any more"


def test_a_step_without_collectives_says_nothing_of_them(step: Step) -> None:
    step.flights.close()
    assert step.sink.records == [] and step.flights.left == []


def test_the_next_step_goes_on_with_what_is_under_way_and_writes_no_record_of_it(step: Step) -> None:
    x = torch.ones(4)
    held, _ = work()
    flight = step.depart(x, held)
    flight.api = OpenCall(1, API, CallName("all_reduce", "Distributed", "all_reduce"), None)
    step.flights.close()
    after = Step()
    after.flights.adopt(step.flights.left)
    assert after.flights.pending == [flight] and flight.api is None
    assert not after.is_defined(x)
    after.flights.land(flight)
    assert after.is_defined(x) and step.written == ["record"]
    after.storages.clear()


def test_flights_are_hidden_again_when_all_that_was_known_of_memory_is_forgotten(step: Step) -> None:
    x = torch.ones(4)
    step.depart(x)
    step.storages.invalidate()
    assert step.is_defined(x)
    step.flights.hide_again()
    assert not step.is_defined(x)


def test_flights_are_found_by_their_work_and_by_their_call(step: Step) -> None:
    call = OpenCall(1, API, CallName("all_reduce", "Distributed", "all_reduce"), None)
    (first, _), (second, _) = work(), work()
    one, two = step.depart(torch.ones(1), first), step.depart(torch.ones(1), second)
    two.api = call
    assert step.flights.of_work(first) == [one] and step.flights.of_work(None) == []
    assert step.flights.of_call(call) == [two]
    step.flights.land_all([one, two])
    assert step.flights.pending == []


@pytest.mark.parametrize("op", [functional.wait_tensor, c10d.monitored_barrier_], ids=str)
def test_an_op_that_writes_nothing_starts_no_flight(step: Step, op: Any) -> None:
    assert step.flights.depart(plan_of(op.default), (torch.ones(1),), {}, torch.ones(1), None) is None


def test_a_barrier_is_under_way_until_it_is_waited_for(step: Step) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.distributed_c10d._get_default_group().boxed()
        asks = [True] if any(a.name == "async_op" for a in c10d.barrier.default._schema.arguments) else []
        given = (torch.zeros(1, dtype=torch.uint8, device="cpu"), group, [], *asks, -1)
        plan = plan_of(c10d.barrier.default)
        flight = step.flights.depart(plan, given, {}, c10d.barrier(*given), None)
        assert flight is not None and step.flights.of_work(flight.work) == [flight] and flight.targets == {}
        step.flights.close()
        assert step.sink.of(NOTE) == [], "it has no result"
    finally:
        dist.destroy_process_group()


def test_a_functional_collective_writes_its_fresh_result(step: Step) -> None:
    x, result = torch.ones(4), torch.ones(4)
    flight = step.flights.depart(plan_of(functional.all_reduce.default), (x, "sum", "0"), {}, result, None)
    assert flight is not None and flight.tensors == [result] and flight.targets == {}
    assert step.is_defined(x) and not step.is_defined(result)


def test_a_functional_collective_that_writes_its_argument_hides_that(step: Step) -> None:
    x = torch.ones(4)
    flight = step.flights.depart(plan_of(functional.all_reduce_.default), (x, "sum", "0"), {}, x, None)
    assert flight is not None and list(flight.targets) == ["input"]
    assert not step.is_defined(x)


def test_of_c10d_the_first_argument_is_written_where_the_name_ends_so(step: Step) -> None:
    """Its schemas do not say. `send` reads its tensors, and returns none."""
    x, y = torch.ones(4), torch.ones(4)
    flight = step.flights.depart(plan_of(c10d.allgather_.default), ([[x]], [y]), {}, None, None)
    assert flight is not None and flight.tensors == [x]
    assert step.flights.depart(plan_of(c10d.send.default), ([y],), {}, None, None) is None
    assert step.is_defined(y)
    keyword = step.flights.depart(plan_of(c10d.recv_.default), (), {"tensors": [y]}, None, None)
    assert keyword is not None and keyword.tensors == [y]


def test_the_group_of_a_functional_collective_is_spelt_out_if_it_is_known() -> None:
    plan = plan_of(functional.all_reduce.default)
    assert name_group(plan, [1, "sum", "no such group"], (None, "sum", "no such group")) == [1, "sum", "no such group"]
    assert name_group(plan, [1], (None,)) == [1], "given as a keyword, if at all"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        name = dist.distributed_c10d._get_default_group().group_name
        args = name_group(plan, [1, "sum", name], (None, "sum", name))
        assert args[:2] == [1, "sum"] and isinstance(args[2], tuple) and "gloo" in args[2]
        plain = plan_of(torch.ops.aten.add.Tensor)
        assert name_group(plain, [1, "sum", name], (None, "sum", name)) == [1, "sum", name]
    finally:
        dist.destroy_process_group()
