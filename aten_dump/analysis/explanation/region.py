"""A region of the target that can be run again and again: what goes into it, its calls, and what it must make.

Theory of operation
    An evaluation runs whole steps. To try many changes of one call, the tensors that go into a region are kept, and its
    calls are run on them alone. What a change does not reach is taken from the first run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import torch

from ...dump import Call, Value
from ...errors import ReplayError
from ...geometry import reach
from ...store.op_names import read_op_name
from ..evaluation.plan import CallPlan
from ..rerun.run_op import Again, Changed, Run, result_slots, run_on, written_ids
from ..rerun.shared_memory import wide
from ..rerun.start_tensors import laid

_ELEMENTS: Final = 10_000  # that are read or made while a call is prepared
_STEPS: Final = 100_000  # of a product, in that time
_PRODUCTS: Final = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "linear"})
_ALIKE: Final = 1e-9  # relative to the largest element: two ways to the same in float64


Make = Callable[[Changed, Callable[[Value], torch.Tensor]], Changed]


class Change(NamedTuple):
    """A change of a call, and of those that a loop repeats at its place.

    Attributes:
        makes: by id of a call: what returns the op and its arguments as they are to be run, given these and what finds
            the tensor of a value.
        text: what is changed, as a clause.
        like: the call of the baseline that is done here too, if that is the change.
        spot: where it is done: ``input.0``.
    """

    makes: Mapping[int, Make]
    text: str
    like: Call | None = None
    spot: str = ""


class Region:
    """Calls that lead from known values to some that differ.

    What a call writes in place is written to a copy, so that what was made before stays as it was.

    Attributes:
        plans: its calls, in execution order.
        calls_run: how many were run.
    """

    def __init__(self, plans: Sequence[CallPlan], given: Sequence[tuple[Value, torch.Tensor]]) -> None:
        """Prepare to run.

        Args:
            plans: its calls, in execution order.
            given: the values that go in, with their tensors.
        """
        self.plans = plans
        self.calls_run = 0
        self._steps = [_Step(plan) for plan in plans]
        self._first = _Made()
        for value, tensor in given:
            self._first.take(value, tensor)

    def begin(self, recorded: Sequence[tuple[Value, torch.Tensor]]) -> bool:
        """Run it as it is; return True if it makes what the evaluation made.

        Args:
            recorded: some values, and what the evaluation made there.
        """
        try:
            self._run(None, self._first)
        except ReplayError:
            return False
        found = [(self._first.find(value), tensor) for value, tensor in recorded]
        return all(made is not None and are_alike(made.reshape(-1), there.reshape(-1)) for made, there in found)

    def first(self, value: Value) -> torch.Tensor | None:
        """Return the tensor of a value as it is without a change."""
        return self._first.find(value)

    def replaced(self, value: Value, tensor: torch.Tensor) -> Callable[[Value], torch.Tensor | None]:
        """Run it with other contents of one of its values; return what finds the tensors of its values then.

        Raises:
            ReplayError: a call cannot be run so.
        """
        made = _Made()
        made.take(value, laid(tensor, torch.empty_strided(value.shape, value.stride, dtype=wide(value.dtype))))
        self._run({}, made)

        def find(one: Value) -> torch.Tensor | None:
            found = made.find(one)
            return self._first.find(one) if found is None else found

        return find

    def _run(self, makes: Mapping[int, Make] | None, made: _Made) -> None:
        """Run the calls that are changed, or that what was made otherwise reaches; all of them without `makes`.

        Raises:
            ReplayError: a call cannot be run so.
        """
        for step in self._steps:
            make = None if makes is None else makes.get(step.id)
            if makes is not None and make is None and not step.reads_any(made):
                continue
            self._count(step.plan)
            copies = _Copies(made, self._first, step.written)
            run = step.run(copies.find, None if make is None else _bound(make, copies.find))
            results = dict(result_slots(run)) if run is not None else {}
            for slot, item in step.plan.recorded:
                tensor = results.get(slot)
                if isinstance(item, Value) and run is None:
                    tensor = torch.zeros(item.shape, dtype=wide(item.dtype))
                if isinstance(item, Value) and isinstance(tensor, torch.Tensor):
                    if tensor.shape != item.shape:  # some kernels of what reads it do not look
                        raise ReplayError(f"{slot} of {step.plan.call.name} has another shape then")
                    made.take(item, tensor, copies.of(item))

    def _count(self, plan: CallPlan) -> None:
        self.calls_run += 1


class RegionToCorrect(Region):
    """A region with what it must make.

    Attributes:
        work: how much was run; 1 is a call on few elements.
    """

    def __init__(
        self,
        plans: Sequence[CallPlan],
        given: Sequence[tuple[Value, torch.Tensor]],
        last: Value,
        wanted: torch.Tensor,
    ) -> None:
        """Prepare to run.

        Args:
            plans: its calls, in execution order.
            given: the values that go in, with their tensors.
            last: the value that differs.
            wanted: what it must be.
        """
        super().__init__(plans, given)
        self._costs = {plan.call.id: _cost_of(plan.call) for plan in plans}
        self.work = 0.0
        self._last = last
        self._wanted = wanted.reshape(-1)

    @property
    def size(self) -> int:
        """How many elements it must make that are not all the same."""
        return 1 if _is_level(self._wanted) else self._wanted.numel()

    def is_right(self, change: Change) -> bool:
        """Return True if the region makes what it must with a change."""
        return self.distance(change) is None

    def distance(self, change: Change) -> torch.Tensor | None:
        """Return what the region makes with a change minus what it must make; None if that is the same.

        It is infinite where the region cannot be run so, or makes something of another size, or complex numbers.
        """
        made = _Made()
        try:
            self._run(change.makes, made)
            found = made.by_id.get(self._last.id)
        except ReplayError:
            found = None
        if found is not None and are_alike(found.reshape(-1), self._wanted) and not self._levels(change, made):
            return None
        if found is None or found.numel() != self._wanted.numel() or found.is_complex() or self._wanted.is_complex():
            return torch.tensor([math.inf])
        return found.reshape(-1).double() - self._wanted.double()

    def _levels(self, change: Change, made: _Made) -> bool:
        """Return True if all elements that a changed call makes are the same, and were not: then it carries nothing."""
        for plan in self.plans:
            for _, value in plan.call.output_values() if plan.call.id in change.makes else ():
                before, after = self._first.by_id.get(value.id), made.by_id.get(value.id)
                if before is not None and after is not None and _is_level(after) and not _is_level(before):
                    return True
        return False

    def _count(self, plan: CallPlan) -> None:
        super()._count(plan)
        self.work += self._costs[plan.call.id]


class _Step:
    """A call of a region, with what is asked of it each time."""

    def __init__(self, plan: CallPlan) -> None:
        self.plan = plan
        self.id = plan.call.id
        self.written = written_ids(plan.call)
        self._reads = [(value.id, (value.storage, value.version)) for _, value in plan.call.input_values()]
        self._again: Again | None = None

    def reads_any(self, made: _Made) -> bool:
        """Return True if it reads, or writes to, something that was made otherwise."""
        return any(id in made.by_id or moment in made.wholes for id, moment in self._reads)

    def run(self, find: Callable[[Value], torch.Tensor], change: Callable[[Changed], Changed] | None) -> Run | None:
        """Run the call; return None of one that makes unwritten memory.

        Raises:
            ReplayError: it cannot be run so.
        """
        if not self.plan.is_run:
            return None
        if change is not None:
            return run_on(self.plan.call, find, change=change)
        if self._again is not None:
            return self._again.run(find)
        found = run_on(self.plan.call, find)
        self._again = Again(self.plan.call)
        return found


class _Made:
    """Tensors by value, and what memory is as a whole."""

    def __init__(self) -> None:
        self.by_id: dict[int, torch.Tensor] = {}
        self.wholes: dict[tuple[int, int], tuple[Value, torch.Tensor]] = {}  # by storage and version

    def take(self, value: Value, tensor: torch.Tensor, whole: tuple[Value, torch.Tensor] | None = None) -> None:
        """Take a tensor as what a value is, and what its memory is with it, if that is known."""
        self.by_id[value.id] = tensor
        moment = value.storage, value.version
        if whole is not None:
            self.wholes[moment] = whole
        elif value.storage and tensor.layout is torch.strided and tensor.stride() == value.stride:
            known = self.wholes.get(moment)
            # What expand repeats reaches no farther.
            if known is None or reach(known[0].shape, known[0].stride) < reach(value.shape, value.stride):
                self.wholes[moment] = value, tensor

    def find(self, value: Value) -> torch.Tensor | None:
        found = self.by_id.get(value.id)
        whole = self.wholes.get((value.storage, value.version)) if found is None and value.storage else None
        return found if whole is None else _laid_over(value, *whole)


class _Copies:
    """What one call is given: what it writes to is copied first."""

    def __init__(self, made: _Made, first: _Made, written: frozenset[int]) -> None:
        self._made, self._first, self._written = made, first, written
        self._wholes: dict[int, tuple[Value, torch.Tensor]] = {}  # by storage

    def find(self, value: Value) -> torch.Tensor:
        """Return the tensor of a value.

        Raises:
            ReplayError: it is not known, or what it is written to is not.
        """
        moment = value.storage, value.version
        if value.id in self._written:
            whole = self._wholes.get(value.storage)
            if whole is None:
                known = self._made.wholes.get(moment) or self._first.wholes.get(moment)
                if known is None:
                    raise ReplayError(f"the memory of {value!r} is not known here")
                whole = self._wholes[value.storage] = known[0], known[1].clone()
            found = _laid_over(value, *whole)
        else:
            found = self._made.find(value)
            found = self._first.find(value) if found is None else found
        if found is None:
            raise ReplayError(f"{value!r} is not known here")
        return found

    def of(self, value: Value) -> tuple[Value, torch.Tensor] | None:
        """Return what the memory of a value is after the call, if the call wrote to it."""
        return self._wholes.get(value.storage)


def _laid_over(value: Value, whole: Value, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a value sees of a tensor of its memory; None if that does not reach as far."""
    first = value.storage_offset - whole.storage_offset
    is_alike = value.dtype_name == whole.dtype_name and tensor.stride() == tuple(whole.stride)
    if not is_alike or first < 0 or first + reach(value.shape, value.stride) > reach(whole.shape, whole.stride):
        return None
    return tensor.as_strided(value.shape, value.stride, tensor.storage_offset() + first)


def _is_level(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.reshape(-1)[:1]).all())


def _bound(make: Make, find: Callable[[Value], torch.Tensor]) -> Callable[[Changed], Changed]:
    return lambda as_recorded: make(as_recorded, find)


def _cost_of(call: Call) -> float:
    """Return about how many times as long a call takes as one on few elements."""
    sizes = [value.numel for _, value in call.input_values()]
    made = sum(value.numel for _, value in call.output_values())
    products = 0.0
    if read_op_name(call.op).name in _PRODUCTS and len(sizes) > 1:
        products = math.sqrt(float(sizes[-1]) * sizes[-2] * made)  # [m, k], [k, n] and [m, n] have m * k * n
    return 1 + (sum(sizes) + made) / _ELEMENTS + products / _STEPS


def can_run(plan: CallPlan) -> bool:
    """Return True if a call makes the same whenever it is run."""
    return plan.call.error is None and not (plan.draws or plan.is_collective)


def are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors are the same but for rounding in float64."""
    if one.shape != other.shape or one.is_complex() != other.is_complex():
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    one, other = one.to(other.dtype), other
    finite = other.isfinite()
    if not torch.equal(one.isfinite(), finite) or not torch.equal(one[~finite], other[~finite]):
        return False
    if not bool(finite.any()):
        return False
    apart, size = (one[finite] - other[finite]).abs().max(), other[finite].abs().max()
    return bool(apart <= _ALIKE * size)
