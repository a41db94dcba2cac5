"""Collectives: their results are recorded when they are there, not when the op that started them returns.

Theory of operation
    An op of ``c10d`` or ``_c10d_functional`` starts a transfer and returns; other threads, or the device, write its
    buffers until somebody waits. A `Flight` is such a transfer. When it departs, the memory that it writes becomes
    undefined, as fresh memory is, and the Call records of the op and of the Python-level call around it are held
    back. It lands when the program waits for it: ``Work.wait`` (see `wait_wrappers`) or ``wait_tensor``. Then the
    memory is defined again, and the records are written with the values that came.

    Waits inside C++ (DDP's reducer) cannot be seen. So a flight also lands before the first op that reads its memory,
    if the work says that it is complete: a program may not read before it has waited. That is asked only then, as the
    answer depends on time: what nobody waits for and nobody reads stays undefined, in every run alike. Nothing here
    waits, and nothing is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from weakref import ref

import torch

from ...store.op_names import WAIT_TENSOR, read_op_name
from ...store.records import NOTE, Note, Tree
from ..memory.geometry import byte_extent
from ..memory.sparse_parts import sparse_parts
from ..memory.storage_table import StorageTable
from ..memory.storages import storage_of
from ..naming.op_schemas import OpPlan
from ..values.distributed_literals import group_named
from .open_calls import OpenCall

_SENDS: Final = "c10d::send"
# They have ended when they return.
_NEVER_WAITED_FOR: Final = frozenset(
    ("c10d::monitored_barrier_", "_c10d_functional::isend", "_c10d_functional::_wrap_tensor_autograd", WAIT_TENSOR)
)


class Flight:
    """A collective that was started and is not known to have ended."""

    __slots__ = ("api", "extents", "finishers", "op", "targets", "tensors", "waiting", "work")

    def __init__(self, work: Any, targets: dict[str, Any], tensors: list[torch.Tensor], api: OpenCall | None) -> None:
        self.work = work  # the Work object that the program gets; None for functional collectives
        self.targets = targets  # arguments that are written, by name
        self.tensors = tensors  # all that is written, fresh outputs too; a barrier writes nothing
        self.extents = [(t.untyped_storage()._cdata, *byte_extent(t)) for t in self.memory()]
        self.api = api  # the Python-level call that started it
        self.op: Any = None  # the op that started it, in this step: what a wait for it runs is inside
        self.finishers: list[Callable[[], None]] = []  # write the records that were held back
        self.waiting = 0  # threads inside the wait for it: they may write the result themselves

    def memory(self) -> list[torch.Tensor]:
        """Return the strided tensors that hold what is written, as they are now: a sparse one is made of several."""
        found: list[torch.Tensor] = []
        for tensor in self.tensors:
            parts = sparse_parts(tensor)
            found += parts.values() if parts else [tensor]
        return [tensor for tensor in found if storage_of(tensor) is not None]

    def touches(self, tensor: torch.Tensor) -> bool:
        """Return True if `tensor` shares bytes with what the flight writes."""
        if storage_of(tensor) is None:
            return any(tensor is written for written in self.tensors)  # a sparse one
        address = tensor.untyped_storage()._cdata
        if not any(address == known for known, _, _ in self.extents):
            return False
        low, high = byte_extent(tensor)
        return any(address == known and low < past and first < high for known, first, past in self.extents)

    def complete(self) -> bool:
        """Return True if an op that reads the memory now reads the result."""
        if self.work is None or self.waiting:
            return False  # only wait_tensor ends a functional collective
        if any(t.device.type != "cpu" for t in self.tensors):
            return True  # ordered by the device's streams, which only the device can ask about
        return bool(self.work.is_completed()) or self._future_done()

    def _future_done(self) -> bool:
        """Return True if the work's future has the result: DDP waits for that; the work is marked a moment later."""
        try:
            return bool(self.work.get_future().done())
        except (RuntimeError, NotImplementedError):  # a backend without futures
            return False

    def ends_with(self, work: Any) -> bool:
        """Return True if it has ended when this Work has been waited for."""
        return self.work is work

    def belongs_to_cpp(self) -> bool:
        """Return True if no Python code holds the Work, so that none can wait for it."""
        return self.work is not None and sys.getrefcount(self.work) <= 2  # the flight's own, and that of the question


class Message(Flight):
    """A message that is sent. Often nobody waits for it, and its Work, which keeps what is sent, is not kept."""

    __slots__ = ("_work",)

    def __init__(self, work: Any) -> None:
        super().__init__(None, {}, [], None)
        self._work = ref(work)

    def ends_with(self, work: Any) -> bool:
        """Return True if it has ended when this Work has been waited for."""
        return self._work() is work


class Flights:
    """The collectives of one step that are under way."""

    __slots__ = ("_emit", "_messages", "_storages", "left", "pending")

    def __init__(self, storages: StorageTable, emit: Callable[[Any], None]) -> None:
        self.pending: list[Flight] = []
        self._messages: list[Flight] = []  # apart, as no op can read what they write
        self.left: list[Flight] = []  # under way when the step ended, for the program to wait for
        self._storages = storages
        self._emit = emit

    def depart(
        self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, api: OpenCall | None
    ) -> Flight | None:
        """Note that a collective was started; None for one that neither writes memory here nor is waited for."""
        if plan.name.op in _NEVER_WAITED_FOR:
            return None
        if plan.name.op == _SENDS:
            return self._send(_work_in(result))
        targets = _targets(plan, args, kwargs)
        tensors = list(_tensors_of(targets.values() or (result,)))
        work = _work_in(result)
        if not tensors and work is None:
            return None
        flight = Flight(work, targets, tensors, api)
        self.pending.append(flight)
        self._hide(flight)
        return flight

    @property
    def under_way(self) -> list[Flight]:
        """All that is under way, messages too."""
        return [*self.pending, *self._messages]

    def _send(self, work: Any) -> Message | None:
        if work is None:
            return None
        message = Message(work)
        self._messages.append(message)
        return message

    def _hide(self, flight: Flight) -> None:
        for tensor in flight.memory():
            self._storages.unwritten(tensor)

    def reading(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An op is about to read these: land what it can only read because the program has waited unseen."""
        for tensor in (*_tensors_of(args), *_tensors_of(tuple(kwargs.values()))):
            for flight in list(self.pending):
                if flight.touches(tensor) and flight.complete():
                    self.land(flight)

    def backward_ended(self, gradients: Iterable[torch.Tensor]) -> None:
        """A backward has ended: land what its own reducer (DDP's) has waited for in C++ and put into these gradients.

        A Work that the program holds is the program's to wait for.
        """
        for gradient in gradients:
            for flight in list(self.pending):
                if flight.touches(gradient) and flight.belongs_to_cpp() and flight.complete():
                    self.land(flight)

    def waited_tensor(self, tensor: Any) -> None:
        """``wait_tensor`` has returned: land what writes to its argument."""
        for flight in list(self.pending):
            if isinstance(tensor, torch.Tensor) and flight.touches(tensor):
                self.land(flight)

    def of_work(self, work: Any) -> list[Flight]:
        """Return the flights that end with this Work."""
        return [flight for flight in self.under_way if flight.ends_with(work)]

    def of_call(self, call: OpenCall) -> list[Flight]:
        """Return the flights that this Python-level call has started."""
        return [flight for flight in self.pending if flight.api is call]

    def land(self, flight: Flight) -> None:
        """The result is there: record it."""
        if flight in self._messages:
            self._messages.remove(flight)
        elif flight in self.pending:
            self.pending.remove(flight)
        else:
            return  # another thread waited for it too
        for tensor in flight.memory():
            self._storages.written(tensor)
        for finish in flight.finishers:
            finish()

    def land_all(self, flights: Iterable[Flight]) -> None:
        """The results of all these are there."""
        for flight in flights:
            self.land(flight)

    def hide_again(self) -> None:
        """Mark the memory of all flights undefined, after the recorder has forgotten what it knew of memory."""
        for flight in self.pending:
            self._hide(flight)

    def close(self) -> None:
        """The step ends: write the records of what is still under way, its results undefined."""
        flights, self.pending, self._messages = self.under_way, [], []
        for flight in flights:
            for finish in flight.finishers:
                finish()
        unknown = sum(bool(flight.tensors) for flight in flights)
        if unknown:
            message = "collectives that nobody waited for before the step ended: their results are undefined"
            self._emit(Note(NOTE, "in_flight", message, unknown))
        self.left = [flight for flight in flights if flight.work is not None and not flight.belongs_to_cpp()]

    def adopt(self, flights: list[Flight]) -> None:
        """Begin a step with what the step before has left under way: undefined until the program waits for it."""
        for flight in flights:
            flight.finishers.clear()
            flight.api = flight.op = None
            self.pending.append(flight)
            self._hide(flight)


def name_group(plan: OpPlan, args: list[Tree], given: tuple[Any, ...]) -> list[Tree]:
    """Return the arguments of a functional collective with its group, which it names, spelt out."""
    if "group_name" not in plan.arguments:
        return args
    position = plan.arguments.index("group_name")
    if position < len(args):
        args[position] = group_named(given[position])
    return args


def _targets(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are written; c10d's schemas do not say: the first, where the name ends in ``_``."""
    writes = plan.writes
    if read_op_name(plan.name.op).namespace == "c10d":
        writes = ((0, plan.arguments[0]),) if plan.name.api.endswith("_") else ()
    return {name: args[at] if at < len(args) else kwargs.get(name) for at, name in writes}


def _tensors_of(items: Any) -> Iterator[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _tensors_of(item)


def _work_in(result: Any) -> Any:
    """Return the Work of a c10d op's result, as the very object that the program gets; None without one."""
    for item in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(item, torch.ScriptObject) and hasattr(torch.distributed.Work, "unbox"):
            return torch.distributed.Work.unbox(item)
    return None
