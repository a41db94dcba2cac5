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
from ..rerun.run_op import Changed, result_slots, run_on, written_ids
from ..rerun.shared_memory import wide

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
    """

    makes: Mapping[int, Make]
    text: str


class Region:
    """Calls that lead from known values to one that differs.

    What a call writes in place is written to a copy, so that what was made before stays as it was.

    Attributes:
        plans: its calls, in execution order.
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
        self.plans = plans
        self._costs = {plan.call.id: _cost_of(plan.call) for plan in plans}
        self.work = 0.0
        self._last = last
        self._wanted = wanted.reshape(-1)
        self._first = _Made()
        for value, tensor in given:
            self._first.take(value, tensor)

    @property
    def size(self) -> int:
        """How many elements it must make that are not all the same."""
        return 1 if _is_level(self._wanted) else self._wanted.numel()

    def begin(self, recorded: torch.Tensor) -> bool:
        """Run it as it is; return True if it makes what the evaluation made of the value that differs.

        Args:
            recorded: what that was.
        """
        try:
            found = self._run(None, self._first)
        except ReplayError:
            return False
        return found is not None and are_alike(found.reshape(-1), recorded.reshape(-1))

    def is_right(self, change: Change) -> bool:
        """Return True if the region makes what it must with a change."""
        return self.distance(change) is None

    def distance(self, change: Change) -> torch.Tensor | None:
        """Return what the region makes with a change minus what it must make; None if that is the same.

        It is infinite where the region cannot be run so, or makes something of another size, or complex numbers.
        """
        made = _Made()
        try:
            found = self._run(change, made)
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

    def _run(self, change: Change | None, made: _Made) -> torch.Tensor | None:
        """Run the calls that a change reaches, all without one; return what the region makes.

        Raises:
            ReplayError: a call cannot be run so.
        """
        for plan in self.plans:
            make = None if change is None else change.makes.get(plan.call.id)
            if change is not None and make is None and not any(made.has(v) for _, v in plan.call.input_values()):
                continue
            self.work += self._costs[plan.call.id]
            copies = _Copies(made, self._first)
            written = written_ids(plan.call)

            def find(value: Value, copies: _Copies = copies, written: frozenset[int] = written) -> torch.Tensor:
                return copies.find(value, is_written=value.id in written)

            changed = None if make is None else _bound(make, find)
            results = dict(result_slots(run_on(plan.call, find, change=changed))) if plan.is_run else {}
            for slot, item in plan.recorded:
                tensor = results.get(slot)
                if isinstance(item, Value) and not plan.is_run:
                    tensor = torch.zeros(item.shape, dtype=wide(item.dtype))
                if isinstance(item, Value) and isinstance(tensor, torch.Tensor):
                    if tensor.shape != item.shape:  # some kernels of what reads it do not look
                        raise ReplayError(f"{slot} of {plan.call.name} has another shape then")
                    made.take(item, tensor, copies.of(item))
        return made.by_id.get(self._last.id)


class _Made:
    """Tensors by value, and what memory is as a whole."""

    def __init__(self) -> None:
        self.by_id: dict[int, torch.Tensor] = {}
        self.wholes: dict[tuple[int, int], tuple[Value, torch.Tensor]] = {}  # by storage and version

    def has(self, value: Value) -> bool:
        return value.id in self.by_id or (value.storage, value.version) in self.wholes

    def take(self, value: Value, tensor: torch.Tensor, whole: tuple[Value, torch.Tensor] | None = None) -> None:
        """Take a tensor as what a value is, and what its memory is with it, if that is known."""
        self.by_id[value.id] = tensor
        moment = value.storage, value.version
        if whole is not None:
            self.wholes[moment] = whole
        elif value.storage and tensor.layout is torch.strided and tensor.stride() == value.stride:
            known = self.wholes.get(moment)
            if known is None or known[0].numel < value.numel:
                self.wholes[moment] = value, tensor

    def find(self, value: Value) -> torch.Tensor | None:
        found = self.by_id.get(value.id)
        whole = self.wholes.get((value.storage, value.version)) if found is None and value.storage else None
        return found if whole is None else _laid_over(value, *whole)


class _Copies:
    """What one call is given: what it writes to is copied first."""

    def __init__(self, made: _Made, first: _Made) -> None:
        self._made, self._first = made, first
        self._wholes: dict[int, tuple[Value, torch.Tensor]] = {}  # by storage

    def find(self, value: Value, *, is_written: bool) -> torch.Tensor:
        """Return the tensor of a value.

        Raises:
            ReplayError: it is not known, or what it is written to is not.
        """
        moment = value.storage, value.version
        if is_written:
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
