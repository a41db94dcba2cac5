"""The one change of a call that makes a region right: the mistake in work that is written otherwise.

Theory of operation
    Where both sides compute the same in two ways, nothing between has a counterpart, and the first call behind the cut
    may be no mistake. But what goes into the region is known, and what must come out of it. So its calls are run again,
    each time with one change: another number or flag, another op of its kind, another value at hand, a call left out,
    or a call more, of those that the baseline makes. The first change that makes the region's result the baseline's is
    the answer: it says where the mistake is, and what would correct it.
    Calls that a loop repeats at one place are changed together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, permutations
from typing import Any, Final, NamedTuple

import torch

from ...dump import Call, Value
from ...errors import AtenDumpError
from ...store.op_names import read_op_name
from ..pairing.call_keys import place_of
from ..rerun.argument_checks import check_arguments
from ..rerun.memory_need import arguments_of
from ..rerun.run_op import Changed, find_op, is_view_op
from .region import Change, Make, RegionToCorrect
from .repair import Asked

MOST_WORK: Final = 50_000  # calls on few elements that all changes together may run, or as much
_MOST_VALUES: Final = 24  # that are tried for one argument
_LEAST_SOLVED: Final = 8  # elements of what a region makes, for which a number is solved
_MOST_STEPS: Final = 3  # calls that something is moved by at first
_MOST_GUESSES: Final = 8  # for one number
_MOST_LEFT: Final = 0.5  # of how far the region is off, that one guess more may leave
_MOST_DIMS: Final = 4  # of which all orders are tried
_DIMS: Final = frozenset({"dim", "dim0", "dim1", "dims"})
_POSITIONS: Final = frozenset({"start", "end", "diagonal", "index", "correction", "shifts"})
_FLAGS: Final = frozenset({"is_causal", "unbiased", "largest", "descending", "log_target", "count_include_pad"})
_KINDS: Final = tuple(
    frozenset(names.split())
    for names in (
        "add sub mul div rsub maximum minimum pow atan2",
        "lt le gt ge eq ne",
        "sum mean amax amin prod logsumexp",
        "var std",
        "cumsum cumprod",
        "tril triu",
        "argmax argmin",
        "max min",
        "_softmax _log_softmax",
        "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor",
        "exp log sigmoid tanh relu gelu silu sqrt rsqrt reciprocal neg abs sin cos log1p expm1 softplus sign square",
        "floor ceil round trunc",
    )
)  # ops that are easily taken for one another
_COPIES: Final = frozenset(("clone", "_to_copy", "copy_", "_unsafe_view"))
_OF_TWO: Final = frozenset({"mul", "add", "sub", "div", "maximum", "minimum"})
_DIVIDES: Final = frozenset({"div", "remainder", "fmod", "floor_divide"})  # by zero, of integers, is an error
_MOVED: Final = frozenset({"mul", "add", "sub", "div"})
_FUNCTIONS: Final = (torch.sqrt, torch.square, torch.exp, torch.log, torch.neg, torch.reciprocal)


class _Here(NamedTuple):
    """A call as it is about to be run."""

    turn: int  # of the loop that makes it
    find: Callable[[Value], torch.Tensor]  # returns the tensor of a value
    given: Changed  # as it was recorded


_Find = Callable[[_Here], "torch.Tensor | None"]


@dataclass(frozen=True, slots=True)
class Correction:
    """A change that makes a region right."""

    call: Call
    text: str
    like: Call | None = None  # see `Change`
    spot: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """The calls that a program makes at one place of a region, by the turn of a loop in which it makes them."""

    calls: dict[int, Call]

    @property
    def first(self) -> Call:
        return next(iter(self.calls.values()))

    def makes(self, make: Callable[[_Here], Changed]) -> dict[int, Make]:
        """Return what changes each of the calls, which is given the call as it is."""
        return {call.id: partial(_made, make, turn) for turn, call in self.calls.items()}

    def changed(self, make: Callable[[_Here], Changed], text: str) -> Change:
        return Change(self.makes(make), text)

    def turn(self, number: int) -> int:
        """Return the turn in which a call is made, by its id."""
        return next(turn for turn, call in self.calls.items() if call.id == number)

    def beside(self, turn: int, call: Call) -> Call | None:
        """Return the call of this place that was made last before a call of another place, of a turn."""
        if len(self.calls) == 1:
            found: Call | None = self.first
        else:
            found = self.calls.get(turn)
            if found is not None and found.id > call.id:
                found = self.calls.get(turn - 1)
        return found if found is not None and found.id < call.id else None


class _Argument(NamedTuple):
    """An argument of a call that is no tensor."""

    at: int
    name: str
    item: Any
    is_given: bool
    is_number: bool  # it is given, and may be a floating one

    def changed(self, place: _Place, other: Any) -> Change:
        """Return the change of this argument at a place."""
        shown = f"{other:.6g}" if isinstance(other, float) else str(other)
        was = f", and not {self.item}" if self.is_given else ""
        return place.changed(partial(_with_argument, self.at, self.name, other), f"if {self.name} is {shown}{was}")


class _Spot(NamedTuple):
    """A tensor that something more may be done to: one that a call reads, or what it makes (`at` is None)."""

    place: _Place
    at: int | None
    slot: str
    value: Value


class Corrections:
    """Looks for the change of one call of a region that makes it right.

    It has more than twenty methods, one for each way to change a call.
    """

    def __init__(
        self,
        asked: Asked,
        calls: tuple[Sequence[Call], Sequence[Call]],
        likes: Sequence[Call],
        smaller: RegionToCorrect | None = None,
        without: Container[int] = (),
    ) -> None:
        """Prepare to look.

        Args:
            asked: a region of the target that was run once, and what is at hand.
            calls: of the target and of the baseline, all.
            likes: the calls of the baseline that make the same of the same.
            smaller: a part of the region that must come right too, as the first of several layers; only calls of it
                are changed, and those that a loop repeats at their place.
            without: ids of calls that were changed before.
        """
        self._region, self._others, self._likes = asked.region, asked.others, _distinct(likes)
        self._asked = asked.region if smaller is None else smaller
        self._changed = {plan.call.id for plan in self._asked.plans if plan.call.id not in without}
        self._inside = inside = [plan.call for plan in asked.region.plans]
        places = _places_of([*inside, *asked.beside], calls[0])
        self._places = _by_place(inside, places)
        self._at_hand = _by_place(sorted((*inside, *asked.beside), key=lambda call: call.id), places)
        lines = {place_of(call) for call in inside}
        self._theirs = {_as_written(call) for call in calls[1] if place_of(call) in lines}
        self._readers = Counter(value.id for call in inside for _, value in call.input_values())
        self._turn_of = {
            value.id: turn
            for place in self._places
            for turn, call in place.calls.items()
            if not _is_view(call)
            for _, value in call.output_values()
        }
        self._numbers, self._named = _arguments_in(likes)

    def find(self, most_work: float) -> Correction | None:
        """Return the first change that makes the region right.

        Args:
            most_work: that may be done for it (`RegionToCorrect.work`).

        Returns:
            None if no change does, or it would be more work.
        """
        everywhere = [place for place in self._places if any(call.id in self._changed for call in place.calls.values())]
        computing = [place for place in everywhere if not _is_view(place.first)]  # a view's reader reads the same
        own = [place for place in everywhere if any(map(self._is_own, place.calls.values()))]
        own_computing = [place for place in own if not _is_view(place.first)]
        for way, places in (
            (self._literals, own),
            (self._left_out, own_computing),
            (self._ops, own_computing),
            (self._near_numbers, own),
            (self._solved, own_computing),
            (self._turned, computing),
            (partial(self._moved, is_near=True), computing),
            (self._more_of_two, computing),
            (self._more_of_one, computing),
            (self._read_otherwise, computing),
            (self._through_a_function, computing),
            (partial(self._moved, is_near=False), computing),
        ):
            for place in places:
                for change in way(place):
                    if self._asked.is_right(change) and self._is_right(change):
                        return Correction(place.first, change.text, change.like, change.spot)
                    if self.work > most_work:
                        return None
        return None

    def _is_own(self, call: Call) -> bool:
        """Return True if the baseline makes no such call at this place: what both programs write alike is right."""
        return _as_written(call) not in self._theirs

    @property
    def work(self) -> float:
        """How much was run (`RegionToCorrect.work`)."""
        return self._region.work + (0 if self._asked is self._region else self._asked.work)

    def _is_right(self, change: Change) -> bool:
        """Return True if the whole region is right with a change that makes what was asked right."""
        return self._asked is self._region or self._region.is_right(change)

    def is_argument(self, target: Call | None, baseline: Call | None) -> bool:
        """Return True if the region is right with the arguments of a call of the baseline that are no tensors."""
        place = next((place for place in self._places if target in place.calls.values()), None)
        if place is None or baseline is None:
            return False
        theirs = [one for one in _arguments(baseline) if one.is_given]
        return self._region.is_right(place.changed(partial(_with_arguments, theirs), ""))

    # -- the ways in which a call may be changed -----------------------------------------------------------------------

    def _literals(self, place: _Place) -> Iterator[Change]:
        """Yield changes of an argument that is no tensor: to the baseline's, and to all others if these are few."""
        for argument in _arguments(place.first):
            for other in self._other_literals(place.first, argument):
                yield argument.changed(place, other)

    def _near_numbers(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a number to one that is easily taken for it."""
        for argument in _arguments(place.first):
            item = argument.item
            if argument.is_number:
                zero = [] if read_op_name(place.first.op).name.rstrip("_") in _DIVIDES else [0]
                found = [-item, *([1 / item] if item else ()), 2 * item, item / 2, *zero, 1]
            elif type(item) is int and argument.name in _POSITIONS:
                found = [item + 1, item - 1, 0]
                if argument.name == "correction":  # torch prints a warning where as many are left as are taken off
                    found = [one for one in found if one < _taken_together(place.first)]
            else:
                continue
            for other in dict.fromkeys(found):
                if other != item:
                    yield argument.changed(place, other)

    def _solved(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a number to the one with which the region makes what it must.

        Of few elements there is always one.
        """
        if self._asked.size < _LEAST_SOLVED:
            return
        for argument in _arguments(place.first):
            if argument.is_number:
                found = self._root(partial(argument.changed, place), float(argument.item))
                if found is not None:
                    yield argument.changed(place, found)

    def _root(self, changed: Callable[[float], Change], item: float) -> float | None:
        """Return the number with which the region makes what it must; None if there is none near.

        What the region makes is taken to be a straight line in the number, between the two that were tried last.
        """
        numbers = [item, item * 1.001 if item else 0.001]
        apart = [self._asked.distance(changed(number)) for number in numbers]
        for _ in range(_MOST_GUESSES):
            one, other = apart[-2:]
            if one is None or other is None or one.shape != other.shape:
                return None
            slope = (other - one) / (numbers[-1] - numbers[-2])
            size = float(slope.square().sum())
            if not 0 < size < math.inf:
                return None
            numbers.append(numbers[-1] - float((slope * other).sum()) / size)
            apart.append(self._asked.distance(changed(numbers[-1])))
            if (last := apart[-1]) is None:
                return numbers[-1]
            if float(last.norm()) > _MOST_LEFT * float(other.norm()):
                return None
        return None

    def _other_literals(self, call: Call, argument: _Argument) -> Iterator[Any]:
        item, name = argument.item, argument.name
        op = read_op_name(call.op).name
        rank = max((len(value.shape) for _, value in call.input_values()), default=0)
        found: list[Any] = list(self._named.get((op, name), ()))
        if isinstance(item, bool):
            found = [not item] if name in _FLAGS else found
        elif argument.is_number and op in _OF_TWO:
            found = [*found, *self._numbers]
        elif type(item) is int and name in _DIMS:
            found = [dim for dim in range(rank) if dim != item % max(1, rank)]
        elif isinstance(item, (list, tuple)) and name in _DIMS and rank <= _MOST_DIMS:
            found = [list(one) for one in permutations(range(rank), len(item))]
        yield from (one for n, one in enumerate(found) if one != item and one not in found[:n])

    def _ops(self, place: _Place) -> Iterator[Change]:
        """Yield changes to another op of the same kind."""
        parts = read_op_name(place.first.op)
        for name in chain.from_iterable(sorted(kind - {parts.name}) for kind in _KINDS if parts.name in kind):
            op = _overload(name, parts.overload)
            if op is not None:
                yield place.changed(partial(_as_op, op), f"if it is aten::{name}")

    def _left_out(self, place: _Place) -> Iterator[Change]:
        """Yield what leaves a call out: an input of its shape stands for its result."""
        made = [value for _, value in place.first.output_values()]
        for at, (slot, value) in enumerate(_tensors(place.first)):
            if len(made) == 1 and value.numel == made[0].numel and value.is_floating == made[0].is_floating:
                shape = None if value.shape == made[0].shape else tuple(made[0].shape)
                yield place.changed(partial(_left_out, at, shape), f"without it, with {slot} for its result")

    def _turned(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a square matrix to its transpose."""
        for spot in self._spots_of(place):
            shape = spot.value.shape
            if spot.value.is_floating and len(shape) > 1 and shape[-1] == shape[-2] > 1:
                yield place.changed(partial(_through, spot.at, _transposed), f"if its {spot.slot} is transposed")

    def _moved(self, place: _Place, *, is_near: bool) -> Iterator[Change]:
        """Yield what leaves a call out and has it elsewhere: the order was another one.

        Args:
            place: of the call.
            is_near: yield what is at most some calls away; False: the rest.
        """
        made = [value for _, value in place.first.output_values()]
        inputs = _tensors(place.first)
        if not inputs or len(made) != 1 or made[0].shape != inputs[0][1].shape or not made[0].is_floating:
            return
        if len(inputs) > 2 or (len(inputs) == 2 and read_op_name(place.first.op).name not in _MOVED):
            return
        left_out = place.makes(partial(_left_out, 0, None))
        around = self._around(place.first)
        for spot in self._spots():
            if (spot.value.id in around) != is_near:
                continue
            is_here = spot.place is place or spot.value.id in (made[0].id, inputs[0][1].id)
            if is_here and not (spot.at is None and spot.place is not place):
                continue
            if len(inputs) == 1:
                make: Callable[[_Here], Changed] = partial(_through, spot.at, _applied(place.first))
            elif _broadcasts(inputs[1][1].shape, spot.value.shape):
                make = partial(_with_two, spot.at, _op_of(place.first), partial(_input_of, place, 1))
            else:
                continue
            there = {
                number: one for number, one in spot.place.makes(make).items() if spot.place.turn(number) in place.calls
            }
            yield Change({**left_out, **there}, f"if it is done to {spot.slot} of {spot.place.first.name}, not here")

    def _more_of_one(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a tensor to what a call of the baseline would make of it."""
        for like in self._likes:
            tensors = _tensors(like)
            made = [value for _, value in like.output_values()]
            if len(tensors) != 1 or len(made) != 1 or like.mutated or made[0].shape != tensors[0][1].shape:
                continue
            for spot in self._spots_of(place):
                if spot.value.is_floating == tensors[0][1].is_floating:
                    text = f"if its {spot.slot} goes through {like.op}, as in {like.name} of the baseline"
                    change = place.changed(partial(_through, spot.at, _applied(like)), text)
                    yield change._replace(like=like, spot=spot.slot)

    def _through_a_function(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a tensor to what a function that is easily forgotten makes of it."""
        for spot in self._spots_of(place):
            for function in _FUNCTIONS if spot.value.is_floating else ():
                text = f"if its {spot.slot} goes through {function.__name__}"
                yield place.changed(partial(_through, spot.at, function), text)

    def _more_of_two(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a tensor to what another call would make of it, given its other tensor."""
        for name, overload, other, find in self._partners(place):
            op = _overload(name, overload)
            for spot in self._spots_of(place):
                if spot.value.is_floating and _broadcasts(other[1], spot.value.shape):
                    text = f"if its {spot.slot} goes through aten::{name} with {other[0]}"
                    yield place.changed(partial(_with_two, spot.at, op, find), text)

    def _around(self, call: Call) -> set[int]:
        """Return the ids of the values of the region that are at most some calls away from one, on its way."""
        found = {value.id for _, value in (*call.input_values(), *call.output_values())}
        for calls, reads, makes in (
            (self._inside, Call.input_values, Call.output_values),
            (self._inside[::-1], Call.output_values, Call.input_values),
        ):
            steps = {value.id: 0 for _, value in makes(call)}
            for one in calls:
                known = [steps[value.id] for _, value in reads(one) if value.id in steps]
                if known and min(known) + (not _is_view(one)) <= _MOST_STEPS:
                    for _, value in makes(one):
                        steps.setdefault(value.id, min(known) + (not _is_view(one)))
            found |= steps.keys()
        return found

    def _spots(self) -> Iterator[_Spot]:
        for place in self._places:
            if not _is_view(place.first):
                yield from (spot for spot in self._spots_of(place) if spot.value.is_floating)

    def _spots_of(self, place: _Place) -> Iterator[_Spot]:
        """Yield where something may be done to a tensor: what a call makes, and what it reads that others read too."""
        made = place.first.output_values()
        if len(made) == 1:
            yield _Spot(place, None, *made[0])
        turn, last = max(place.calls.items(), key=lambda item: item[1].id)
        for at, ((slot, value), (_, one)) in enumerate(zip(_tensors(place.first), _tensors(last), strict=False)):
            if self._readers[one.id] != 1 or self._turn_of.get(one.id) != turn:
                yield _Spot(place, at, slot, value)

    def _read_otherwise(self, place: _Place) -> Iterator[Change]:
        """Yield changes of a tensor that a call reads to another one of its shape."""
        for at, (slot, value) in enumerate(_tensors(place.first)):
            for name, find in self._values(place, value):
                yield place.changed(partial(_with_tensor, at, find), f"if {slot} is {name}")

    def _partners(self, place: _Place) -> Iterator[tuple[str, str, tuple[str, Sequence[int]], _Find]]:
        """Yield ops that join two tensors, and one of these with its name and shape: of the target, then of both."""
        for other in self._places:
            parts = read_op_name(other.first.op)
            tensors = _tensors(other.first)
            if other is place or parts.name not in _OF_TWO or len(tensors) != 2:
                continue
            for at, (_, value) in enumerate(tensors):
                if not (at == 0 and parts.name in ("sub", "div")):
                    named = f"{_name_of(value)}, as in {other.first.name}"
                    yield (
                        parts.name,
                        parts.overload,
                        (named, value.shape),
                        partial(_input_beside, place, other, at),
                    )
        for like in self._likes:
            parts = read_op_name(like.op)
            for one, tensor in self._others:
                if parts.name in _OF_TWO and any(one.id == value.id for _, value in like.input_values()):
                    named = f"{_name_of(one)} of the baseline, as in {like.name}"
                    yield parts.name, parts.overload, (named, tensor.shape), partial(_fixed, tensor)

    # -- what is at hand -----------------------------------------------------------------------------------------------

    def _values(self, place: _Place, value: Value) -> Iterator[tuple[str, _Find]]:
        """Yield the values that may stand for one, with what finds their tensors in each turn of a loop."""
        found = 0
        for other in self._at_hand:
            is_here = place.first in other.calls.values()
            for slot, one in () if is_here else other.first.output_values():
                if one.id != value.id and _are_of_a_kind(one, value):
                    found += 1
                    yield _name_of(one), partial(_output_beside, place, other, slot)
        # To give a copy what should come of it says nothing of who is wrong.
        is_copied = _is_view(place.first) or read_op_name(place.first.op).name in _COPIES
        for one, tensor in self._others:
            if _are_of_a_kind(one, value) and found < _MOST_VALUES and not is_copied:
                found += 1
                yield f"what {_name_of(one)} of the baseline is", partial(_fixed, tensor)


def _distinct(calls: Sequence[Call]) -> list[Call]:
    """Return the first of the calls of one op that are given the same, apart from tensors."""
    found: dict[Hashable, Call] = {}
    for call in calls:
        found.setdefault((call.op, _literals_of(call)), call)
    return list(found.values())


def _literals_of(call: Call) -> tuple[str, ...]:
    """Return what a call is given, apart from tensors."""
    args, kwargs = call.shared_inputs()
    return tuple(repr(one) for one in (*args, *kwargs.items()) if not _has_values(one))


def _as_written(call: Call) -> Hashable:
    """Return what two calls share that a program makes at one place, and that are given the same but for tensors."""
    return (*place_of(call), _literals_of(call))


def _are_of_a_kind(one: Value, other: Value) -> bool:
    return one.shape == other.shape and one.is_floating == other.is_floating


def _name_of(value: Value) -> str:
    """Return who made a value."""
    maker = value.producer
    return f"{maker[0].name}.{maker[1]}" if maker else repr(value)


def _places_of(calls: Sequence[Call], all_calls: Iterable[Call]) -> dict[int, tuple[Hashable, int]]:
    """Return the place at which the program makes each of some calls, and the turn of the loop that repeats it, by id.

    Args:
        calls: some.
        all_calls: of the step, in execution order.
    """
    lines: dict[tuple[str, str], list[Call]] = {(call.phase, call.where): [] for call in calls}
    for call in all_calls:
        if (call.phase, call.where) in lines:
            lines[call.phase, call.where].append(call)
    found: dict[int, tuple[Hashable, int]] = {}
    for line, some in lines.items():
        for turn, repeated in enumerate(_periods(some)):
            found |= {call.id: ((line, place), turn) for place, call in enumerate(repeated)}
    return found


def _by_place(calls: Sequence[Call], places: Mapping[int, tuple[Hashable, int]]) -> list[_Place]:
    """Return some calls by the place at which the program makes them, in execution order."""
    found: dict[Hashable, dict[int, Call]] = defaultdict(dict)
    for call in calls:
        place, turn = places[call.id]
        found[place][turn] = call
    return sorted(map(_Place, found.values()), key=lambda place: min(call.id for call in place.calls.values()))


def _periods(calls: Sequence[Call]) -> list[list[Call]]:
    """Return the calls of a line by the turns of a loop in which they are made: the ops repeat."""
    ops = [call.op for call in calls]
    for size in range(1, len(ops) // 2 + 1):
        if len(ops) % size == 0 and ops == ops[:size] * (len(ops) // size):
            return [list(calls[at : at + size]) for at in range(0, len(ops), size)]
    return [list(calls)]


def _output_beside(place: _Place, other: _Place, slot: str, here: _Here) -> torch.Tensor | None:
    call = other.beside(here.turn, place.calls[here.turn])
    return None if call is None else here.find(dict(call.output_values())[slot])


def _input_beside(place: _Place, other: _Place, at: int, here: _Here) -> torch.Tensor | None:
    call = other.beside(here.turn, place.calls[here.turn])
    return None if call is None else here.find(_tensors(call)[at][1])


def _input_of(place: _Place, at: int, here: _Here) -> torch.Tensor | None:
    return here.find(_tensors(place.calls[here.turn])[at][1])


def _fixed(tensor: torch.Tensor, here: _Here) -> torch.Tensor | None:
    return tensor


def _taken_together(call: Call) -> int:
    """Return how many elements of what a call reads make one of its result."""
    read, made = _tensors(call)[0][1], call.output_values()[0][1]
    return read.numel // max(1, made.numel)


def _op_of(call: Call) -> Any:
    try:
        op = find_op(call)
    except AtenDumpError:
        return None
    return op if hasattr(op, "_schema") else None


def _arguments(call: Call) -> Iterator[_Argument]:
    """Yield the arguments of a call that are no tensors, those that were left to their defaults among them."""
    args, kwargs = call.shared_inputs()
    op = _op_of(call)
    for at, argument in enumerate(() if op is None else op._schema.arguments):
        item = args[at] if at < len(args) else kwargs.get(argument.name, argument.default_value)
        kind = str(argument.type)
        is_number = type(item) in (int, float) and any(one in kind for one in ("number", "float", "Tensor"))
        if not _has_values(item) and (is_number or "Tensor" not in kind):
            is_given = at < len(args) or argument.name in kwargs
            yield _Argument(at, argument.name, item, is_given, is_number and is_given)


def _overload(name: str, overload: str) -> Any:
    packet = getattr(torch.ops.aten, name, None)
    for one in (overload or "default", "default", "Tensor"):
        if packet is not None and one in packet.overloads():
            return getattr(packet, one)
    return None


def _is_view(call: Call) -> bool:
    op = _op_of(call)
    return op is not None and is_view_op(op)


def _tensors(call: Call) -> list[tuple[str, Value]]:
    return list(call.input_values())


def _has_values(item: Any) -> bool:
    return isinstance(item, Value) or (isinstance(item, (list, tuple)) and any(map(_has_values, item)))


def _broadcasts(one: Sequence[int], shape: Sequence[int]) -> bool:
    """Return True if a tensor of one shape can stand beside one of another, which stays as large as it is."""
    ends = zip(reversed(one), reversed(shape), strict=False)
    return len(one) <= len(shape) and all(size in (1, whole) for size, whole in ends)


def _arguments_in(calls: Sequence[Call]) -> tuple[list[float], dict[tuple[str, str], list[Any]]]:
    """Return the numbers that calls are given, and all that are no tensors by op and argument."""
    numbers: dict[float, None] = {}
    named: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for call in calls:
        op = _op_of(call)
        if op is None:
            continue
        args, kwargs = call.shared_inputs()
        names, _ = arguments_of(op)
        for name, item in (*zip(names, args, strict=False), *kwargs.items()):
            if _has_values(item) or item is None:
                continue
            if type(item) in (int, float) and name not in _DIMS:
                numbers[item] = None
            named[read_op_name(call.op).name, name].append(item)
    return list(numbers), named


# -- changes, as they are made -----------------------------------------------------------------------------------------


def _made(
    make: Callable[[_Here], Changed], turn: int, given: Changed, find: Callable[[Value], torch.Tensor]
) -> Changed:
    return make(_Here(turn, find, given))


def _with_argument(at: int, name: str, item: Any, here: _Here) -> Changed:
    given = here.given
    if at < len(given.args):
        return given._replace(args=[*given.args[:at], item, *given.args[at + 1 :]])
    return given._replace(kwargs={**given.kwargs, name: item})


def _with_arguments(arguments: Sequence[_Argument], here: _Here) -> Changed:
    for one in arguments:
        here = here._replace(given=_with_argument(one.at, one.name, one.item, here))
    return here.given


def _as_op(op: Any, here: _Here) -> Changed:
    return here.given._replace(op=op)


def _left_out(at: int, shape: tuple[int, ...] | None, here: _Here) -> Changed:
    tensor = _Slots(here.given).tensors[at]
    return Changed(torch.ops.aten.clone.default, [tensor if shape is None else tensor.reshape(shape)], {})


def _with_tensor(at: int, other: _Find, here: _Here) -> Changed:
    found = other(here)
    return here.given if found is None else _Slots(here.given).replaced(at, found)


def _through(at: int | None, applied: Callable[[torch.Tensor], torch.Tensor], here: _Here) -> Changed:
    if at is None:
        return here.given._replace(after=applied)
    slots = _Slots(here.given)
    return slots.replaced(at, applied(slots.tensors[at]))


def _with_two(at: int | None, op: Any, other: _Find, here: _Here) -> Changed:
    found = other(here)
    return here.given if found is None else _through(at, lambda tensor: op(tensor, found), here)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT


def _applied(like: Call) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what a call with a single tensor does, to be done to another one."""
    args, kwargs = like.shared_inputs()
    is_complex = _tensors(like)[0][1].dtype.is_complex

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex() != is_complex:
            raise TypeError("it is of another kind of numbers")
        op, filled = find_op(like), [_filled(one, tensor) for one in args]
        check_arguments(op, filled, kwargs)
        found: torch.Tensor = op(*filled, **kwargs)
        return found

    return apply


def _filled(item: Any, tensor: torch.Tensor) -> Any:
    if isinstance(item, Value):
        return tensor
    return [_filled(one, tensor) for one in item] if isinstance(item, (list, tuple)) else item


class _Slots:
    """The tensors among the arguments of a call, in order."""

    def __init__(self, given: Changed) -> None:
        self._given = given
        self.tensors: list[torch.Tensor] = []
        self._map(self._noted)

    def replaced(self, at: int, other: torch.Tensor) -> Changed:
        """Return the call with another tensor in the place of one.

        Raises:
            ValueError: it has another shape. Some kernels do not look at that.
        """
        if other.shape != self.tensors[at].shape or other.is_complex() != self.tensors[at].is_complex():
            raise ValueError("another shape or kind of numbers")
        places = iter(range(len(self.tensors)))
        return self._map(lambda tensor: other if next(places) == at else tensor)

    def _noted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.append(tensor)
        return tensor

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Changed:
        def each(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return change(item)
            return [each(one) for one in item] if isinstance(item, (list, tuple)) else item

        args = [each(one) for one in self._given.args]
        return self._given._replace(args=args, kwargs={name: each(one) for name, one in self._given.kwargs.items()})
