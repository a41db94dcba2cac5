"""Evaluates one recorded step in float64 and numbers its values.

Theory of operation
    Each call is run once, in execution order, on the results of earlier calls. What no call made is a *source*: it has
    its recorded contents, or those of the other side's counterpart (`stand_ins`), so that both sides compute from the
    same. Results of random ops, of collectives and of ops that cannot be run here are sources too, at their place in
    the order. Integers and booleans that were computed from floats are choices. If the recorded choice differs from
    that of float64, both sides use the target's recorded one, as its program went on with it. If ends differ then, the
    baseline's choices may be used, or none (`EvaluatedStep.chooser`). With `jitter` every result is moved by a fraction
    of itself. The change of a value then shows how far rounding moves it, even a sum that cancels, or its sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import torch

from ...dump import Call, Value
from ...errors import AtenDumpError, ReplayError, UnfinishedError
from ...geometry import once
from ...store.op_names import UNSCALE_GRADIENTS, WAIT_TENSOR, is_workspace, read_op_name
from ..flow.computed_dtype import computed_dtype
from ..flow.data_flow import DataFlow
from ..flow.flat_memory import parts_of
from ..flow.undefined_memory import UndefinedMemory
from ..rerun.kernel_ops import behind_unknown, unknown_slots
from ..rerun.memory_need import first_cause, ran_out
from ..rerun.run_op import result_slots, run_on, said_by
from ..rerun.start_tensors import laid, start_tensors
from ..rerun.undefined_elements import DEPENDS
from ..signatures.numbering import Numbering
from ..signatures.signature import UNDEFINED, Signature, distance, sign, sign_value, sum_of_scalars
from .file_memory import FileMemory
from .memory import UNREADABLE, Group, Memory, group_of
from .numbers_in_python import COMPUTED, NearCall, NumbersInPython
from .plan import CallPlan, Key, plan_of

Chooser = Literal["target", "baseline", "float64"]
_INFINITE: Final = 1e9  # whole numbers from there on mean infinity, as in masks
JITTER: Final = 1e-12  # relative; far above rounding in float64, far below what a program rounds to
_ROUNDING: Final = 1e-14  # relative; of float64, after some sums
_UPDATES_SCALE: Final = "_amp_update_scale_"
_UNDEFINED: Final = 1.618  # times the rms of the other elements: the value of undefined ones
_COMPILED: Final = "torch.compile:"  # prefix of the ops of compiled code
_UNRUN: Final = 2.0  # times the eps of its dtype: error of an element of a result that was not run
_NO_MEMORY: Final = (
    "memory ran out while a step was evaluated in float64 ({error}): give the process more, or set TMPDIR to a folder "
    "on a disk, where values go that memory has no room for"
)
_SAFETY: Final = 10.0  # times the change of a projection by jitter: how far rounding may move a value


class Transfers(Protocol):
    """The collectives of a recording of all ranks."""

    def __contains__(self, call: object, /) -> bool:
        """Return True if all inputs of a collective are known, by id."""
        ...

    def run(self, call: Call, memory: Memory) -> dict[int, dict[str, torch.Tensor]]:
        """Return what each of the calls that meet one brings, by its id and slot.

        Raises:
            ReplayError: what such a collective must deliver is not known.
        """
        ...


class EvaluatedStep:
    """A recorded step and rank, read for its evaluations.

    Attributes:
        flow: its data flow.
        plans: its calls.
        left: buffers of which the contents at the end of the step count.
        undefined: the elements that depend on memory that nothing wrote.
        wanted: ids of values that need their own signature, including views.
        starts: ids of the gradients that backward was given, by id of the tensor it was called on.
        transfers: the collectives that can be run, because all ranks are present.
        loss_scales: storages of scales of the loss. Both sides are evaluated with a scale of 1, because the scale
            belongs to the precision and not to the function.
        extremes: replacements for the largest numbers of the side's dtype. These mean infinity in masks, and depend on
            the precision.
        chooser: the side whose program decides on integers that are computed from floats.
    """

    chooser: Chooser = "target"

    def __init__(
        self,
        flow: DataFlow,
        left: Sequence[Value],
        wanted: Container[int] = (),
        starts: Mapping[int, int] = MappingProxyType({}),
        transfers: Transfers | None = None,
    ) -> None:
        self.flow = flow
        self.transfers = transfers
        self.plans = plan_of(flow, transfers or ())
        self.left = tuple(left)
        self.wanted, self.starts = wanted, starts
        self.of_roots = frozenset((*starts, *starts.values()))
        self.loss_scales = frozenset(_loss_scales(flow))
        self.extremes = _extremes(flow)
        self.undefined = UndefinedMemory(flow, runs=True)

    def defined(self, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in of a value, with one number for all elements that depend on unwritten memory."""
        elements = self.undefined.blank_elements(value)
        if elements is None or elements.shape != tensor.shape or tensor.layout is not torch.strided:
            return tensor
        depends = elements == DEPENDS
        found = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)
        known = found[~depends & found.isfinite()]
        found[depends] = _UNDEFINED * (float(known.abs().square().mean().sqrt()) if known.any() else 1.0)
        return found

    def depends(self, value: Value) -> bool:
        """Return True if something of a value depends on memory that nothing wrote."""
        elements = self.undefined.blank_elements(value)
        return elements is not None and (self.is_blank(value) or bool((elements == DEPENDS).any()))

    def is_blank(self, value: Value) -> bool:
        """Return True if all of a value depends on memory that nothing wrote."""
        elements = self.undefined.blank_elements(value)
        if elements is None or not value.numel:
            return False
        kept = elements[tuple(slice(0, 1) if step == 0 else slice(None) for step in elements.stride())]
        return bool((kept == DEPENDS).all())


def _loss_scales(flow: DataFlow) -> Iterator[int]:
    """Yield the storages of scales of the loss: a scaler updates them, or unscales by their inverse."""
    for call in flow.calls():
        name = read_op_name(call.op).name
        if name == _UPDATES_SCALE:
            yield from (value.storage for slot, value in call.input_values() if slot == "input.0")
        elif call.op.startswith(UNSCALE_GRADIENTS):
            value = next((value for slot, value in call.input_values() if slot == "input.2"), None)
            while value is not None and (maker := flow.maker(value)) is not None and len(flow.reads(maker)) == 1:
                value = flow.reads(maker)[0][1]
            if value is not None and value.numel == 1:
                yield value.storage


def _extremes(flow: DataFlow) -> dict[float, float]:
    """Return replacements for the largest numbers of a side's dtype: those of float32."""
    dtype = computed_dtype(flow.rank)
    if dtype is None or dtype.is_complex or dtype.itemsize >= torch.float32.itemsize:
        return {}
    one, other = torch.finfo(dtype), torch.finfo(torch.float32)
    return {one.max: other.max, one.min: other.min}


class Choices:
    """What the choosing side chose where float64 chooses otherwise, by what that chooses and from which values."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[frozenset[tuple[int, str]], torch.Tensor | None]] = {}
        self.differ = False  # one is another than that of float64

    def add(self, contents: Hashable, read: frozenset[tuple[int, str]], chosen: torch.Tensor | None) -> None:
        """Note a choice: None if float64 makes the same.

        Args:
            contents: of the choice of float64.
            read: the numbers and dtypes of what it was made from: a coarse dtype has other ties.
            chosen: the choice, int or bool of any shape.
        """
        self._known.setdefault(contents, {})[read] = chosen
        self.differ = self.differ or chosen is not None

    def find(self, contents: Hashable, read: frozenset[tuple[int, str]]) -> torch.Tensor | None:
        """Return what was chosen from these values, or from others if that was one choice; None: as in float64."""
        known = self._known.get(contents, {})
        return known[read] if read in known else next(iter(known.values())) if len(known) == 1 else None


@dataclass(slots=True)
class Shared:
    """What both evaluations of a step share."""

    numbering: Numbering = field(default_factory=Numbering)
    choices: Choices = field(default_factory=Choices)
    outcomes: dict[Hashable, dict[str, Value]] = field(default_factory=dict)  # of the target's unrun calls
    in_python: NumbersInPython = field(default_factory=NumbersInPython)
    files: FileMemory = field(default_factory=FileMemory)


class Evaluation:
    """One side of a step, evaluated.

    It has more than twenty methods and more than fifteen attributes, because the tensors and the numbers of one run
    belong together.

    Attributes:
        numbers: of values, by id.
        signatures: of the values that were looked at, by id.
        sources: the values that no call made and that calls read, by id.
        unproven: why calls were not evaluated, or only on the other side's numbers, by id.
        holders: the ids of the values that have a number.
        supposed: numbers that it may have in another layout, without proof: only the search for the cause uses them.
        watch: is called with each result when it is made.
        watch_all: the same, afterwards, also for views.
        watch_calls: is called after each call.
        watch_left: is called with the final contents of each buffer.
        replaced: replacements for results or views, with their numbers, by id.
        rounds: True if every result is moved by the rounding of its dtype, instead of by `jitter`.
        rounded: ids of calls that were not run, whose recorded results are moved by the rounding of their dtype.
        wholes: the last contents of memory that was written in part.
    """

    watch: Callable[[Value, torch.Tensor], None] | None = None
    watch_all: Callable[[Value, torch.Tensor], None] | None = None
    watch_calls: Callable[[Call], None] | None = None
    watch_left: Callable[[Value, torch.Tensor], None] | None = None
    replaced: Mapping[int, tuple[torch.Tensor, int]] = MappingProxyType({})
    rounds = False
    rounded: frozenset[int] = frozenset()

    def __init__(
        self,
        step: EvaluatedStep,
        shared: Shared,
        stand_ins: Mapping[int, torch.Tensor] | None = None,
        *,
        leads: bool = False,
        jitter: float = 0.0,
    ) -> None:
        """Prepare to evaluate.

        Args:
            step: a recorded step and rank.
            shared: what both evaluations share.
            stand_ins: contents to use for sources, by value id.
            leads: True for the target, whose choices and outcomes count.
            jitter: relative size of the change of every result.
        """
        self.flow = step.flow
        self.numbers: dict[int, int] = {}
        self.signatures: dict[int, Signature] = {}
        self.sources: dict[int, Value] = {}
        self.unproven: dict[int, str] = {}
        self.holders: dict[int, list[int]] = {}
        self.supposed: set[int] = set()
        self.at_end: dict[int, int] = {}  # numbers of the buffers that the step left, by value id
        self.changes: dict[int, Signature] = {}  # of final minus initial contents, by value id
        self.scalars: dict[int, Signature] = {}  # what roots come to with the gradient that backward starts from, by id
        self._of_roots: dict[int, torch.Tensor] = {}
        self._step = step
        self._shared = shared
        self._stand_ins = stand_ins or {}
        self._leads = leads
        self._jitter = jitter
        self._generator = torch.Generator()
        self._memory = Memory(self._load, lambda value: self.flow.writer(value) is None, seed=int(leads))
        self.in_python = shared.in_python
        self.took: dict[int, torch.Tensor] = {}  # choices that it used and that differ from the recorded ones, by id
        self.near: list[NearCall] = []  # calls with another number than the target's, and nearly the same result
        self._literals: dict[float, float] = dict(step.extremes)
        self._left: list[tuple[Value, Signature]] = []
        self._began: dict[int, int] = {}
        self._behind: dict[int, torch.Tensor] = {}  # inputs of kernels that made a value without a name, by value id
        self._partly: set[int] = set()  # storages that were written in part last
        self.wholes: list[Signature] = []
        self._brought: dict[int, dict[str, torch.Tensor]] = {}  # by collectives that other ranks began, by call

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Evaluate all calls.

        Raises:
            UnfinishedError: memory ran out.
        """
        try:
            self._run_all()
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            raise UnfinishedError(_NO_MEMORY.format(error=said_by(first_cause(error))), ()) from error

    def _run_all(self) -> None:
        kept = {group_of(value.storage, value.id) for value in self._step.left}
        self._generator.manual_seed(7)
        for plan in self._step.plans:
            if plan.is_run:
                self._evaluate(plan)
                if self.watch_calls is not None:
                    self.watch_calls(plan.call)
            freed = [group for group in plan.frees if group not in kept]
            self._sign_wholes(freed)
            self._memory.free(freed)
        for value in self._step.left:
            tensor = self._memory.known(value)
            if tensor is not None:
                self._left.append((value, sign(tensor)))
                if self.watch_left is not None:
                    self.watch_left(value, tensor)
                self._sign_change(value, tensor)
        self._memory = Memory(self._load)
        self._sign_scalars()
        self._number_left()

    def held(self, value: Value) -> torch.Tensor | None:
        """Return the current stand-in of a value while the evaluation runs; None if it is not in memory."""
        return self._memory.known(value)

    def start_of(self, value: Value) -> torch.Tensor | None:
        """Return the initial contents of memory from outside."""
        start = self._stand_ins.get(value.id)
        return _recorded(value) if start is None else start

    def _sign_scalars(self) -> None:
        """Sign what backward differentiates: the sum of a root times its starting gradient."""
        for root, start in self._step.starts.items():
            one, other = self._of_roots.get(root), self._of_roots.get(start)
            if one is not None and other is not None and one.shape == other.shape and one.is_floating_point():
                self.scalars[root] = sign((one * other).sum())
        self._of_roots.clear()

    def _sign_change(self, value: Value, tensor: torch.Tensor) -> None:
        """Sign the change of memory: an update may be too small to show beside the old contents."""
        start = self.start_of(value)
        if start is None or not tensor.is_floating_point() or start.shape != tensor.shape:
            return
        if start.layout is tensor.layout is torch.strided:
            noise = _ROUNDING * float(start.double().norm())
            self.changes[value.id] = sign(tensor - start.to(tensor.dtype))._replace(noise=noise)

    def depends(self, value: Value) -> bool:
        """Return True if something of a value depends on memory that nothing wrote."""
        return self._step.depends(value)

    @property
    def numbering(self) -> Numbering:
        """The numbers of both sides' values."""
        return self._shared.numbering

    @property
    def undefined(self) -> UndefinedMemory:
        """Which elements depend on memory that nothing wrote."""
        return self._step.undefined

    @property
    def chooser(self) -> Chooser:
        """The side whose choices both sides use."""
        return self._step.chooser

    @property
    def left(self) -> tuple[Value, ...]:
        """The buffers of which the contents at the end of the step count."""
        return self._step.left

    def began(self, value: Value | None) -> int | None:
        """Return the number of what memory held before the step."""
        if value is None:
            return None
        found = self.numbers.get(value.id, self._began.get(value.id))
        if found is None and (start := _recorded(value)) is not None:
            found = self._began[value.id] = self._shared.numbering.number(sign(start))
        return found

    def is_changed(self, value: Value) -> bool:
        """Return True if the step changed memory, even by very little."""
        change = self.changes.get(value.id)
        return self.at_end.get(value.id) != self.began(value) or (change is not None and change.norm > change.noise)

    def left_as(self, value: Value) -> Signature | None:
        """Return the signature of what the step left in memory."""
        return next((signature for one, signature in self._left if one.id == value.id), None)

    def _sign_wholes(self, freed: Sequence[Group]) -> None:
        """Sign memory that was last written in part: the other side may have written the whole."""
        for storage, _ in freed:
            whole = self._memory.largest(storage) if storage in self._partly else None
            if whole is not None and not self._step.is_blank(whole[0]):
                self.wholes.append(sign(self._step.defined(*whole)))

    def _number_left(self) -> None:
        for signature in self.wholes:
            self.holders.setdefault(self._shared.numbering.number(signature), [])
        for value, signature in self._left:
            self.at_end[value.id] = number = self._shared.numbering.number(signature)
            self.holders.setdefault(number, [])

    def noise_beside(self, moved: Evaluation) -> dict[int, float]:
        """Return how far rounding moves each value, by id, as a second evaluation with `jitter` shows.

        It is infinite where an element is finite in one of them alone: that shows nothing of the others.
        """
        found = {}
        for number, one in self.signatures.items():
            other = moved.signatures.get(number)
            if other is None or (other.numel, other.nonfinite) != (one.numel, one.nonfinite):
                found[number] = math.inf
            else:
                found[number] = _SAFETY * distance(one, other)
        for plan in self._step.plans:
            for value in plan.results.values() if plan.call.id in moved.rounded else ():
                if value.id in found and value.is_floating and not value.dtype.is_complex:
                    rounding = _SAFETY * _UNRUN * torch.finfo(value.dtype).eps * self.signatures[value.id].norm
                    found[value.id] = max(found[value.id], rounding)
        for known, others in ((self.changes, moved.changes), (self.scalars, moved.scalars)):
            for number, one in known.items():
                noise = one.noise + _SAFETY * distance(one, others.get(number, one))
                known[number] = one._replace(noise=noise)
        ends = {value.id: signature for value, signature in moved._left}
        for place, (value, one) in enumerate(self._left):
            noise = _SAFETY * distance(one, ends.get(value.id, one))
            self._left[place] = value, one._replace(noise=noise)
        return found

    def renumber(self, shared: Shared, noise: Mapping[int, float] | None = None) -> None:
        """Number all values again, from signatures and keys alone; `noise` is how far rounding moves values, by id."""
        signatures, noise = self.signatures, noise or {}
        self.numbers, self.holders, self.supposed, self._began, self._shared = {}, {}, set(), {}, shared
        if noise:
            self.signatures = {number: one._replace(noise=noise.get(number, 0.0)) for number, one in signatures.items()}
        for value in self.sources.values():
            self._number_again(value)
        for plan in self._step.plans:
            if plan.is_run:
                for _, value in plan.reads:
                    self._number_again(value)
                key = plan.key(self.numbers, self._literals)
                known = shared.numbering.by_key(key) if plan.is_keyed else None
                numbers = []
                for place, value in enumerate(plan.results.values()):
                    same = known[place] if known is not None and place < len(known) else None
                    numbers.append(self._give(value, same) if same is not None else self._number_again(value))
                if known is None and plan.is_keyed:
                    shared.numbering.keep(key, tuple(numbers))
        for number in self.signatures.keys() - self.numbers.keys():
            self._number_again(self.flow.rank.value_by_id(number))
        self._number_left()

    def trace(self, numbers: dict[int, int], made: dict[Key, tuple[int, ...]], fresh: Iterator[int]) -> bool:
        """Number values by the calls and inputs that made them, and not by their contents.

        Args:
            numbers: of sources, by id; those of results are added. Other sources have the number of their contents.
            made: the numbers of results of both sides, by key.
            fresh: numbers that nothing has.

        Returns:
            False if memory identifies a value, and no call does.
        """
        storages = {self.flow.rank.value_by_id(number).storage for number in numbers}
        for plan in self._step.plans:
            for _, value in plan.reads if plan.is_run else ():
                if value.id not in numbers:
                    known = self.numbers.get(value.id)
                    if known is None or value.storage in storages or self.flow.maker(value) is not None:
                        return False
                    numbers[value.id] = -1 - known
            values = [item for _, item in plan.recorded if isinstance(item, Value)] if plan.is_run else []
            if plan.is_keyed:
                key = plan.key(numbers, self._literals)
                found = made.get(key)
                if found is None or len(found) != len(values):
                    found = made[key] = tuple(next(fresh) for _ in values)
            else:  # it has its recorded result, whatever its inputs
                if any(value.id not in self.numbers for value in values):
                    return False
                found = tuple(-1 - self.numbers[value.id] for value in values)
            for value, number in zip(values, found, strict=True):
                numbers.setdefault(value.id, number)
        return True

    def _number_again(self, value: Value) -> int:
        found = self.numbers.get(value.id)
        if found is None:
            signature = self.signatures.get(value.id)
            numbering = self._shared.numbering
            found = self._give(value, numbering.new() if signature is None else numbering.number(signature))
        return found

    def _evaluate(self, plan: CallPlan) -> None:
        call = plan.call
        for _, value in plan.reads:
            self.number_of(value)
        key = self._key(plan)
        known = self._shared.numbering.by_key(key) if plan.is_keyed else None
        try:
            made = self._run(plan)
        except UNREADABLE as error:
            if ran_out(error):
                raise
            plan.draws = plan.may_draw
            self._take_recorded(plan, key, None if plan.draws else known, str(error))
            return
        tensors = {}
        for slot, item in plan.recorded:
            tensor = made.get(slot)
            if not isinstance(item, Value) or not isinstance(tensor, torch.Tensor):
                self._read_number(plan, item)
                continue
            is_made = slot in plan.results and not slot.startswith("mutated")
            if is_made:
                tensor = self._shared.files.within([tensor])[0]
            if slot in plan.results:
                tensor = self._made(plan, item, tensor)
            elif item.id in self.replaced:
                tensor = self._replace(item, tensor)
            tensors[slot] = tensor
            (self._memory.begin if is_made else self._memory.keep)(item, tensor)
            if self.watch_all is not None:
                self.watch_all(item, tensor)
            if item.id in self._step.wanted and slot not in plan.results:
                self._sign(item, tensor)
            if slot.startswith("mutated") and item.storage:
                larger = item.numel * item.dtype.itemsize < item.storage_nbytes
                (self._partly.add if larger else self._partly.discard)(item.storage)
            for name, part in item.parts.items():
                self._memory.keep(part, _part(tensor, name))
        if plan.copies is not None:
            self._memory.carry(*plan.copies)
        numbers = []
        for place, (slot, value) in enumerate(plan.results.items()):
            same = known[place] if known is not None and place < len(known) else None
            if slot in tensors and not is_workspace(call.op, slot):
                numbers.append(self._sign(value, tensors[slot], same))
            else:
                numbers.append(self._give(value, self._shared.numbering.new() if same is None else same))
        if known is None and plan.is_keyed:
            self._shared.numbering.keep(key, tuple(numbers))
            self._note(plan, key)

    def _made(self, plan: CallPlan, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        """Return a result of a call as the evaluation uses it."""
        tensor = self._chosen(plan, value, tensor)
        if value.id in self.replaced:
            tensor = self._replace(value, tensor)
        if self.watch is not None:
            self.watch(value, tensor)
        if value.storage in self._step.loss_scales and value.numel == 1:
            tensor.fill_(1)
        if self._jitter and tensor.is_floating_point() and tensor.layout is torch.strided:
            is_real = value.is_floating and not value.dtype.is_complex
            eps = torch.finfo(value.dtype if is_real else torch.float32).eps
            _move(tensor, eps if self.rounds and is_real else self._jitter, 2 / eps, self._generator)
        return tensor

    def _replace(self, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        """Write the replacement into a result or into a view."""
        contents, number = self.replaced[value.id]
        self._give(value, number)
        self.signatures[value.id] = sign(contents)
        return laid(contents.to(tensor.dtype), tensor)

    def _key(self, plan: CallPlan) -> Key:
        """Return the key of a call, with the target's numbers for those that were computed from numbers read."""
        key = plan.key(self.numbers, self._literals)
        if not self._leads and (not plan.is_keyed or self._shared.numbering.by_key(key) is None):
            stand_ins = self.in_python.computed(*key)
            if stand_ins:
                self._literals |= stand_ins
                self.unproven[plan.call.id] = COMPUTED
                return plan.key(self.numbers, self._literals)
        return key

    def _note(self, plan: CallPlan, key: Key) -> None:
        """Note the numbers that a call of the target got, or that a call of the baseline got other numbers."""
        masked, floats = key
        if not floats:
            return
        results = [value.id for value in plan.results.values()]
        if self._leads:
            signatures = {number: self.signatures[number] for number in results if number in self.signatures}
            self.in_python.note(masked, floats, plan.call, signatures)
        else:
            self.near += self.in_python.near(masked, floats, plan.call, self.signatures)

    def _run(self, plan: CallPlan) -> dict[str, Any]:
        if plan.is_met:
            return self._meet(plan)
        if plan.call.op == WAIT_TENSOR:
            return {"output.0": self._memory.find(plan.reads[0][1])}
        if plan.is_collective:
            raise ReplayError("a collective: other ranks have a part in it")
        if plan.draws:
            raise ReplayError("it draws random numbers")

        unknown = unknown_slots(plan.call)
        for _, value in plan.reads if unknown else ():  # what reads the results is computed from what made them
            self._behind[value.id] = self._memory.find(value).clone()
        behind = {value.id for value in behind_unknown(plan.call).values()}

        def given(value: Value) -> torch.Tensor:
            if value.id in behind and value.id in self._behind:
                return self._behind[value.id]
            if value.id not in plan.read:
                return self._memory.blank(value)
            tensor = self._memory.find(value)
            return _as_held(tensor, value) if plan.makes_integers else tensor

        made = dict(result_slots(run_on(plan.call, given, numbers=self._literals)))
        for slot, item in plan.recorded if plan.call.op == "aten::view.dtype" else ():
            if isinstance(item, Value) and item.is_floating and made[slot].shape != item.shape:
                raise ReplayError("it shows bytes as floats, which have another size in float64")
        for slot in unknown:
            recorded = _recorded(plan.results[slot]) if slot in plan.results else None
            if recorded is not None:
                laid(recorded, made[slot])
        return made

    def _meet(self, plan: CallPlan) -> dict[str, Any]:
        """Run a collective for all its ranks when the first of their calls is evaluated."""
        transfers = self._step.transfers
        assert transfers is not None
        if plan.call.id not in self._brought:
            self._brought |= transfers.run(plan.call, self._memory)
        return self._brought.pop(plan.call.id)

    # -- what is not run ---------------------------------------------------------------------------------------------

    def _take_recorded(self, plan: CallPlan, key: Key, known: tuple[int, ...] | None, why: str) -> None:
        """Use the recorded results of a call: those of the target if it has a call with the same key."""
        self.unproven[plan.call.id] = why
        numbering = self._shared.numbering
        outcomes = {} if plan.draws else self._shared.outcomes.get(key, {})
        numbers = []
        kept = dict(plan.results) if self._leads and not plan.draws else {}
        for place, (slot, value) in enumerate(plan.results.items()):
            same = known[place] if known is not None and place < len(known) else None
            if group_of(value.storage, value.id) in plan.frees:  # nothing reads it
                numbers.append(self._sign_recorded(outcomes.get(slot, value), value, same))
                continue
            tensor = _recorded(value)
            if tensor is not None:
                if slot in outcomes and outcomes[slot].shape == tensor.shape:
                    outcome = _recorded(outcomes[slot])
                    tensor = tensor if outcome is None else laid(outcome, tensor)
                self._round(plan, value, tensor)
                self._written(value, tensor)
            if tensor is not None:
                numbers.append(self._sign(value, tensor, same))
            else:
                numbers.append(self._give(value, numbering.new() if same is None else same))
        if not plan.draws:
            numbering.keep(key, tuple(numbers))
            self._shared.outcomes.setdefault(key, kept)

    def _round(self, plan: CallPlan, value: Value, tensor: torch.Tensor) -> None:
        if plan.call.id in self.rounded and tensor.is_floating_point() and tensor.layout is torch.strided:
            eps = torch.finfo(value.dtype).eps
            _move(tensor, _UNRUN * eps, 2 / eps, self._generator)

    @cached_property
    def has_unseen(self) -> bool:
        """True if compiled code made values without a recorded op: then their recorded contents are used."""
        if not runs_compiled(self.flow):
            return False
        makers = (value.producer for value in self.sources.values())
        return any(made is not None and is_compiled(made[0]) for made in makers)

    @property
    def rests_on_unseen(self) -> bool:
        """True if a backward without recorded ops, as that of `prod`, made a source: other contents do not fit."""
        return any(is_of_node(value) for value in self.sources.values())

    def alone(self, other: Evaluation) -> frozenset[int]:
        """Return the ids of calls that were not run and have no counterpart, such as a compiler's regions."""
        found = set()
        for plan in self._step.plans:
            if plan.call.id in self.unproven and not (plan.draws or plan.is_collective):
                numbers = [self.numbers.get(value.id) for value in plan.results.values()]
                if any(number not in other.holders for number in numbers):
                    found.add(plan.call.id)
        return frozenset(found)

    def _sign_recorded(self, outcome: Value, value: Value, same: int | None) -> int:
        """Number a result that was not run and that nothing reads, without keeping it in memory."""
        known = self.numbers.get(value.id)
        if known is not None:
            return known
        try:
            signature = self.signatures[value.id] = sign_value(outcome)
        except UNREADABLE:
            return self._give(value, self._shared.numbering.new() if same is None else same)
        return self._give(value, self._shared.numbering.number(signature) if same is None else same)

    def _written(self, value: Value, tensor: torch.Tensor) -> None:
        """Keep the recorded contents of a value in its memory, if that is known."""
        there = self._memory.known(value)
        if there is not None and there.shape == tensor.shape and there.dtype == tensor.dtype:
            there = laid(tensor, there)
        self._memory.keep(value, tensor if there is None else there)

    def _chosen(self, plan: CallPlan, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        """Return integers that were computed from floats as the choosing side's program used them."""
        if tensor.is_floating_point() or tensor.is_complex() or (not tensor.numel() and not value.numel):
            return tensor
        if value.undefined or not any(v.is_floating for _, v in plan.reads):
            return tensor
        contents, chooser = sign(tensor).contents, self._step.chooser
        read = frozenset((self.numbers.get(v.id, 0), v.dtype_name) for _, v in plan.reads)
        takes, chooses = chooser != "float64", self._leads == (chooser == "target")
        decides = chooses and takes and not self._jitter
        if self._jitter:  # jitter must not change a choice
            found = self.took.get(value.id)
        else:
            found = self._shared.choices.find(contents, read) if takes and not chooses else None
        if found is None:
            try:
                recorded = value.shared_tensor()
            except AtenDumpError:
                return tensor
            is_same = recorded.shape == tensor.shape and torch.equal(recorded, tensor)
            found = recorded.clone() if decides and not is_same else recorded
            if decides:
                self._shared.choices.add(contents, read, None if is_same else found)
            if is_same:
                return tensor
            if not (decides or self._jitter) and tensor.shape == value.shape:
                found = tensor.clone()
        if not self._jitter:
            self.took[value.id] = found
        return laid(found, tensor) if found.shape == tensor.shape else found.clone()

    def _read_number(self, plan: CallPlan, item: Any) -> None:
        """Note a number that the program read from a tensor: what Python computes from it is not recorded."""
        if not isinstance(item, float):
            return
        read = tuple(self.numbers.get(value.id, 0) for _, value in plan.reads)
        if self._leads:
            self.in_python.read(read, item)
        elif (found := self.in_python.read_alike(read, item, plan.call)) is not None:
            self._literals[item] = found

    @cached_property
    def _read(self) -> set[int]:
        """The ids of what calls read."""
        return {value.id for call in self.flow.calls() for _, value in self.flow.reads(call)}

    # -- sources -----------------------------------------------------------------------------------------------------

    def _load(self, value: Value) -> torch.Tensor | None:
        """Load the memory of a source, with all values that share it at that moment."""
        group = [value]
        if value.storage and not value.composed and not value.undefined:
            others = (
                v for v in self.flow.of_moment(value) if v.has_data and not (v.undefined or v.opaque or v.composed)
            )
            group += [v for v in others if self.flow.maker(v) is None and self._memory.known(v) is None]
        tensors = None
        for chosen in (group, [value]):
            try:
                tensors = self._loaded(chosen)
                break
            except UNREADABLE as error:
                if ran_out(error):
                    raise
                continue
        if tensors is None:
            return None
        for one in sorted((v for v in group if v.id in tensors), key=lambda v: -v.numel):
            if one.id in self._stand_ins:
                tensors[one.id] = laid(self._stand_ins[one.id].to(tensors[one.id].dtype), tensors[one.id])
            if one.storage in self._step.loss_scales and one.numel == 1:
                tensors[one.id].fill_(1)
            self._memory.keep(one, tensors[one.id])
            if self.watch_all is not None:
                self.watch_all(one, tensors[one.id])
            if self.flow.maker(one) is None and (one is value or one.id in self._read):
                self.sources[one.id] = one
        self._sign(value, tensors[value.id])
        return tensors[value.id]

    def _loaded(self, values: Sequence[Value]) -> dict[int, torch.Tensor]:
        tensors = start_tensors(values)
        return dict(zip(tensors, self._shared.files.within(list(tensors.values())), strict=True))

    # -- numbers -----------------------------------------------------------------------------------------------------

    def number_of(self, value: Value) -> int:
        """Return the number that an input of a call has at this moment."""
        found = self.numbers.get(value.id)
        if found is None:
            try:
                found = self._sign(value, self._memory.find(value))
            except UNREADABLE as error:
                if ran_out(error):
                    raise
                found = self._give(value, self._shared.numbering.new())
        return found

    def number_of_sum(self, values: Sequence[Value]) -> int | None:
        """Return the number of the sum of what backward differentiates; None if one of them was not made."""
        found = [self.scalars.get(value.id, self.signatures.get(value.id)) for value in values]
        signatures = [one for one in found if one is not None and one.numel == 1]
        if not signatures or len(signatures) < len(found):
            return None
        noise = math.sqrt(sum(one.noise**2 for one in signatures))
        total = sum_of_scalars(signatures)._replace(noise=noise)
        number = self._shared.numbering.number(total)
        self.holders.setdefault(number, [])
        return number

    def _sign(self, value: Value, tensor: torch.Tensor, same: int | None = None) -> int:
        known = self.numbers.get(value.id)
        if known is not None:
            return known
        if (meant := self._memory.meant(value)) is not None:
            tensor = meant
        if self._step.is_blank(value):
            signature = Signature(value.numel, 0.0, 0.0, 0.0, UNDEFINED)
        else:
            signature = sign(_unexpanded(self._step.defined(value, tensor)))
        self.signatures[value.id] = signature
        if value.id in self._step.of_roots:
            self._of_roots[value.id] = tensor.detach().clone()
        self._sign_parts(value, tensor)
        return self._give(value, self._shared.numbering.number(signature) if same is None else same)

    def _sign_parts(self, value: Value, tensor: torch.Tensor) -> None:
        """Sign the parts of a long tensor: the other side may have them as separate tensors."""
        parts = parts_of(value)
        row = tensor.contiguous() if parts else tensor
        for part in parts:
            start = row.storage_offset() + part.storage_offset - value.storage_offset
            self._sign(part, row.as_strided(part.shape, part.stride, start))

    def _give(self, value: Value, number: int) -> int:
        self.numbers[value.id] = number
        self.holders.setdefault(number, []).append(value.id)
        return number


def runs_compiled(flow: DataFlow) -> bool:
    """Return True if a step calls compiled code."""
    return any(op.op.startswith(_COMPILED) for op in flow.rank.tables.ops.records())


def is_compiled(call: Call | None) -> bool:
    """Return True if a call is one of compiled code, or within one."""
    while call is not None and not call.op.startswith(_COMPILED):
        call = call.parent
    return call is not None


def _recorded(value: Value) -> torch.Tensor | None:
    """Return the recorded contents of a value in float64, or None."""
    if value.undefined or value.opaque:
        return None
    try:
        return start_tensors([value])[value.id]
    except UNREADABLE:
        return None


def _unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor, those of expanded dimensions once."""
    return once(tensor) if tensor.layout is torch.strided else tensor


def _as_held(tensor: torch.Tensor, value: Value) -> torch.Tensor:
    """Return a tensor with its whole numbers rounded to the recorded dtype."""
    if not value.is_floating or value.dtype.is_complex or tensor.layout is not torch.strided:
        return tensor
    return torch.where(tensor == tensor.round(), tensor.to(value.dtype).to(tensor.dtype), tensor)


def is_of_node(value: Value) -> bool:
    """Return True if a backward without recorded ops made a value."""
    made = value.producer
    return made is not None and made[0].kind == "node"


def _move(tensor: torch.Tensor, jitter: float, exact: float, generator: torch.Generator) -> None:
    """Move elements by a fraction of themselves, except whole numbers that their dtype holds exactly, or that are huge.

    Rounding does not change a mask of zeros and ones, nor the -1e30 of another one. Moving it would uncover what it
    hides, or part it from its own maximum.
    """
    kept = once(tensor)
    size = kept.abs()
    is_whole = (kept == kept.round()) & ((size <= exact) | (size >= _INFINITE))
    kept.mul_(1 + jitter * torch.randn(kept.shape, dtype=kept.dtype, generator=generator).masked_fill_(is_whole, 0))


def _part(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices() if name == "indices" else tensor._values()
    found: torch.Tensor = getattr(tensor, name)()
    return found
