"""Two values that no pair of calls explains: the unmatched calls behind each, and whether both mean the same.

Theory of operation
    Where a matched call reads a value that unmatched calls made (a fused op on one side, its parts on the other), the
    cone of the value is walked back to values that have a counterpart: the cut. Numbers at the boundary differ by
    noise of all that came before, so they are not judged by themselves: both cones are run in float64 from the
    *baseline's* values at the cut. What is left of a difference is one of meaning: a missing bias, another scale.

    That holds if both start from the same values. Where one side starts from x and the other from a rounded silu(x),
    the rounding would show; so the value that was made last is replaced by what its call read, on the side
    that has it alone, until both start alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from ...dump import Call, RankDump, Value
from ...errors import AtenDumpError, ReplayError
from ...store.records import CALL_KINDS
from ..distance.element_chunks import plain
from ..distance.metrics import Metrics, measure
from ..rerun.run_op import UNREPLAYABLE, find_op, leaves
from ..rerun.shared_memory import wide
from .noise_floors import Limits

SAME_MEANING: Final = Limits(1e-8, 1e-7)  # of two float64 computations
_MOST_WIDENED: Final = 60  # calls with a counterpart that may be added so that both cones start alike
_ROUNDINGS: Final = 4.0  # of the values that only one side starts from, where they cannot be traced back
_MOST_CALLS: Final = 2000
_MOST_ELEMENTS: Final = 32 << 20
_RUN_ERRORS: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Cone:
    """The unmatched calls behind a value, in execution order, and the values that they start from."""

    value: Value
    calls: tuple[Call, ...]
    cut: tuple[Value, ...]


class Makers:
    """Who made a value, also where it is a view of memory that was written through another view.

    Only calls of the kind that is walked count. A later view back to what was there before makes nothing; it is told
    by ids, which rise in the order in which values are first seen.
    """

    def __init__(self, rank: RankDump, kind: str) -> None:
        self._rank = rank
        self._kind = kind

    @cached_property
    def _positions(self) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
        """Positions of makers by value id, and by storage and version."""
        tables = self._rank.tables
        ops = {op.id for op in tables.ops.records() if CALL_KINDS[op.call_kind] == self._kind}
        by_id: dict[int, int] = {}
        by_moment: dict[tuple[int, int], int] = {}
        for position, record in enumerate(tables.calls):
            if record.op not in ops:
                continue
            call = self._rank.call_at(position)
            newest = max((number for _, number in call.input_slots()), default=0)
            for _, number in (*call.output_slots(), *call.written_slots()):
                if number > newest:
                    by_id.setdefault(number, position)
                    value = tables.values[number]
                    by_moment.setdefault((value.storage, value.version), position)
        return by_id, by_moment

    def call(self, value: Value) -> Call | None:
        """Return the call that made a value, or made its memory what it is; None for what came from outside."""
        by_id, by_moment = self._positions
        found = by_id.get(value.id)
        if found is None and value.storage and value.version:
            found = by_moment.get((value.storage, value.version))
            if found is not None and any(number == value.id for _, number in self._rank.call_at(found).input_slots()):
                return None  # it only looked at memory that was written where nobody saw it
        return None if found is None else self._rank.call_at(found)


def cone_of(value: Value, makers: Makers, known: Callable[[Value], bool], matched: Callable[[Call], bool]) -> Cone:
    """Return the cone of a value.

    Args:
        value: where to start.
        makers: of its step and rank.
        known: tells whether a value has a counterpart.
        matched: tells whether a call has one.
    """
    calls: dict[int, Call] = {}
    cut: dict[int, Value] = {}
    seen = {value.id}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        call = None if known(item) else makers.call(item)
        if call is None or matched(call) or len(calls) > _MOST_CALLS:
            cut[item.id] = item
            continue
        calls[call.id] = call
        for _, given in call.input_values():
            if given.id not in seen:
                seen.add(given.id)
                waiting.append(given)
    return Cone(value, tuple(calls[id] for id in sorted(calls)), tuple(cut.values()))


def from_common_start(
    cones: tuple[Cone, Cone], makers: tuple[Makers, Makers], partner: Mapping[int, Value], serial: Mapping[int, int]
) -> tuple[tuple[Cone, Cone], Limits]:
    """Widen two cones until they start from the same values.

    Args:
        cones: the target's and the baseline's.
        makers: of both sides.
        partner: the baseline's counterpart of a target's value, by value id.
        serial: numbers of the baseline's values with counterparts, in execution order.

    Returns:
        The cones, and how far apart two computations of the same may then be.
    """
    calls = [{call.id: call for call in cone.calls} for cone in cones]
    cuts = [{value.id: value for value in cone.cut} for cone in cones]
    for _ in range(_MOST_WIDENED):
        odd = _odd(cuts, partner)
        made = [(side, value, call) for side, value in odd for call in [makers[side].call(value)] if call is not None]
        made = [item for item in made if _can_run(item[2])]
        if not made:
            break
        side, value, call = max(made, key=lambda item: serial.get(_other(item[0], item[1], partner), -1))
        calls[side][call.id] = call
        del cuts[side][value.id]
        given = [item for _, item in call.input_values() if not _is_inside(item, makers[side], calls[side])]
        cuts[side] |= {item.id: item for item in given}
    odd = _odd(cuts, partner)
    rest = [value for side, value in odd if makers[side].call(value) is not None and value.is_floating]
    widened = tuple(
        Cone(cone.value, tuple(inside[id] for id in sorted(inside)), tuple(cut.values()))
        for cone, inside, cut in zip(cones, calls, cuts, strict=True)
    )
    if not rest:
        return (widened[0], widened[1]), SAME_MEANING
    coarsest = max((value.dtype for value in rest), key=lambda dtype: torch.finfo(dtype).eps)
    return cones, Limits.of(coarsest).times(_ROUNDINGS)


def _odd(cuts: list[dict[int, Value]], partner: Mapping[int, Value]) -> list[tuple[int, Value]]:
    """Return the values that only one side starts from, with the side."""
    starts = {_other(0, value, partner) for value in cuts[0].values()}
    alone = [(0, value) for value in cuts[0].values() if _other(0, value, partner) not in cuts[1]]
    return alone + [(1, value) for value in cuts[1].values() if value.id not in starts]


def _other(side: int, value: Value, partner: Mapping[int, Value]) -> int:
    """Return the id of a value in the baseline; -1 if it has none there."""
    if side == 1:
        return value.id
    return partner[value.id].id if value.id in partner else -1


def _is_inside(value: Value, maker: Makers, calls: Mapping[int, Call]) -> bool:
    call = maker.call(value)
    return call is not None and call.id in calls


def _can_run(call: Call) -> bool:
    """Tell whether a call can be run again; one that draws random numbers turns out when it is."""
    try:
        find_op(call)
    except UNREPLAYABLE:
        return False
    return call.error is None


def meaning(target: Cone, baseline: Cone, partner: Mapping[int, Value]) -> Metrics | str:
    """Run both cones in float64 from the same values.

    Args:
        target: the cone of the target's value.
        baseline: that of the baseline's.
        partner: the baseline's counterpart of a target's value, by value id.

    Returns:
        The distance of the two results, or why there is none.
    """
    try:
        starts = {value.id: partner.get(value.id, value) for value in target.cut}
        one = _run(target, starts)
        other = _run(baseline, {value.id: value for value in baseline.cut})
    except UNREPLAYABLE as error:
        return str(error)
    except AtenDumpError as error:
        return str(error)
    if one.shape != other.shape:
        return f"in float64 the results have shapes {list(one.shape)} and {list(other.shape)}"
    return measure(_widened(one), _widened(other))


def means_the_same(target: Call, baseline: Call) -> bool:
    """Tell whether two calls are the same function at the baseline's inputs: ``dim=-1`` or ``dim=2``, say."""
    inputs = dict(baseline.input_values())
    partner = {value.id: inputs[slot] for slot, value in target.input_values() if slot in inputs}
    results = dict(baseline.result_values())
    ours = target.result_values()
    for slot, value in ours:
        if slot not in results:
            return False
        found = meaning(_alone(value, target), _alone(results[slot], baseline), partner)
        if isinstance(found, str) or found.nonfinite or SAME_MEANING.ratio(found) > 1:
            return False
    return bool(ours)


def _alone(value: Value, call: Call) -> Cone:
    return Cone(value, (call,), tuple(given for _, given in call.input_values()))


def _run(cone: Cone, starts: Mapping[int, Value]) -> torch.Tensor:
    _check_size(cone, starts)
    known = _Known()
    for value in cone.cut:
        known.keep(value, _widened(plain(starts[value.id].tensor())).clone())
    for call in cone.calls:
        _run_call(call, known)
    return known.find(cone.value)


class _Known:
    """Tensors by value; after a write the same memory, seen with the same geometry, is the next version's value."""

    def __init__(self) -> None:
        self._by_id: dict[int, torch.Tensor] = {}
        self._by_place: dict[tuple[object, ...], torch.Tensor] = {}

    def keep(self, value: Value, tensor: torch.Tensor) -> None:
        self._by_id[value.id] = tensor
        if value.storage:
            self._by_place[_place(value)] = tensor

    def find(self, value: Value) -> torch.Tensor:
        found = self._by_id.get(value.id)
        if found is None and value.storage:
            found = self._by_place.get(_place(value))
        if found is None:
            raise ReplayError(f"{value!r} is neither at the cut nor made behind it")
        return found


def _place(value: Value) -> tuple[object, ...]:
    return value.storage, value.storage_offset, tuple(value.shape), value.stride, value.dtype_name


def _check_size(cone: Cone, starts: Mapping[int, Value]) -> None:
    elements = sum(value.numel for value in starts.values())
    elements += sum(value.numel for call in cone.calls for _, value in call.output_values())
    if elements > _MOST_ELEMENTS:
        raise ReplayError(f"it takes {elements} elements, too many to run again while comparing")


def _run_call(call: Call, known: _Known) -> None:
    op = find_op(call)
    args, kwargs = call.inputs
    made = [_argument(item, known) for item in args]
    named = {name: _argument(item, known) for name, item in kwargs.items()}
    if call.op in ("aten::_softmax", "aten::_log_softmax") and len(made) > 2:
        made[2] = False  # half_to_float
    try:
        with torch.no_grad(), _drawing_nothing(call, op):
            outputs = op(*made, **named)
    except _RUN_ERRORS as error:
        text = str(error).strip().partition("\n")[0]
        raise ReplayError(f"{call.name} raised when run in float64: {text}") from error
    _keep(call.outputs, outputs, known)
    names = call.arguments
    for name, item in call.mutated_values.items():
        position = names.index(name) if name in names else len(made)
        _keep(item, made[position] if position < len(made) else named.get(name), known)


@contextmanager
def _drawing_nothing(call: Call, op: Any) -> Iterator[None]:
    """Check that an op that may draw random numbers (attention with dropout 0, say) draws none."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        yield
        return
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise ReplayError(f"{call.name} draws random numbers")


def _keep(recorded: Any, made: Any, known: _Known) -> None:
    """Note the tensors that were made under the ids of the recorded ones."""
    tensors = dict(leaves(made, ""))
    for slot, item in leaves(recorded, ""):
        tensor = tensors.get(slot)
        if isinstance(item, Value) and isinstance(tensor, torch.Tensor):
            known.keep(item, tensor)


def _argument(item: Any, known: _Known) -> Any:
    if isinstance(item, Value):
        return known.find(item)
    if isinstance(item, (list, tuple)):
        return [_argument(entry, known) for entry in item]
    if isinstance(item, torch.dtype):
        return wide(item)
    if isinstance(item, torch.device):
        return torch.device("cpu")
    if item is None or isinstance(item, (bool, int, float, complex, str, torch.memory_format, torch.layout)):
        return item
    raise ReplayError(f"an argument is {item!r}, which cannot be made again")


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(wide(tensor.dtype))
