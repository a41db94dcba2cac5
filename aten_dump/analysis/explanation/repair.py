"""Where a difference can be repaired: the first value that, made what the other side has there, makes the ends right.

Theory of operation
    Of two programs that are written otherwise, much is found behind ends that differ, and most of it is no mistake. So
    the target is evaluated once more, with one of its values replaced by one of the baseline's of as many elements.
    If the ends come out as the baseline's do, the mistake is that value's maker or comes before it; if not, it comes
    after it, or beside it, or what stands there is something else. What lies behind the ends is run again for that,
    from the value on. Where that cannot be done, the whole step is evaluated each time, and each time half of what is
    left is asked no more.

    A difference is innocent if no end changes with it put right, as what stands in rows that a mask leaves out. Then it
    is put right for good, and the cause is looked for in what the target is without it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import islice, pairwise, permutations
from typing import Final, NamedTuple

import torch

from ...dump import Call, Value
from ...errors import ReplayError
from ...geometry import once
from ..cone.cone import Cone, cone_of
from ..ends.ends import End, number_of
from ..evaluation.evaluation import EvaluatedStep, Evaluation, Shared
from ..evaluation.plan import CallPlan
from ..flow.data_flow import DataFlow
from ..flow.moving_ops import moves_elements
from ..pairing.call_keys import place_of
from ..rerun.run_op import written_ids
from ..signatures.signature import distance, is_equal, sign
from .arrangement import laid_in_rows
from .other_layout import FORWARD
from .other_rows import OtherRows, ordinals
from .region import Region, RegionToCorrect, are_alike, can_run

_MOST_RUNS: Final = 24
_MOST_CALLS: Final = 60_000  # that all runs together may evaluate
_MOST_BYTES: Final = 1 << 30  # of the baseline's values that are held
_MOST_LIKES: Final = 3
_MOST_BESIDE: Final = 400  # calls of which what they make is at hand
_SAME_NORM: Final = 1e-9  # relative: two values that may have the same elements
_MOST_DIMS: Final = 5  # of which all orders are asked
_MOST_OF_REGION: Final = 1000  # calls that are run again and again
_MOST_OF_ONE: Final = 2  # runs that one question takes
_OF_REGION: Final = 0.15  # of an evaluation: what it takes to run as many calls of a region again
_MOST_ASKED: Final = 600  # values that are all asked; of more, half are left out each time
_MOST_FOUND: Final = 3
_MOST_ROWS: Final = 8  # that are named
_ONE_BY_ONE: Final = 5  # values that are asked in order: halving would miss one of two branches


class _AllMadeError(Exception):
    """All that is asked for is there: nothing after it counts."""


class Like(NamedTuple):
    """A value of the baseline that may stand in the place of one of the target."""

    value: Value
    order: tuple[int, ...] = ()  # of its dimensions there, if it is another one
    rows: tuple[int, ...] = ()  # which of its rows stand there, if the target has them in other places

    def laid(self, tensor: torch.Tensor, own: torch.Tensor | None = None) -> torch.Tensor:
        """Return its tensor as it stands there; `own` is what the target has there."""
        if self.rows and own is not None:
            return laid_in_rows(self.rows, tensor, own)
        return tensor.permute(self.order).contiguous() if self.order else tensor


class Asked(NamedTuple):
    """A region, and what is at hand for a change of it."""

    region: RegionToCorrect
    beside: list[Call]  # of the target: what they make could have been read
    others: list[tuple[Value, torch.Tensor]]  # of the baseline, that both sides have


@dataclass(slots=True)
class _Option:
    """A value of the target, and those of the baseline that may stand in its place."""

    call: Call
    value: Value
    likes: list[Like]


class Repair:
    """Evaluates the target with some of its values replaced.

    It has more than twenty methods: what may be replaced, by what, and how each is asked belong together.

    Attributes:
        sides: evaluated.
        contents: of both sides' sources, by id, that were not taken as recorded.
        found: values of the target that repair all ends, each with what the baseline has there: the last one first, and
            the one that was narrowed to last.
        corrects: regions are asked for: no step before differed.
        rows: values that have the baseline's rows in other places.
    """

    corrects = True

    def __init__(
        self,
        sides: tuple[Evaluation, Evaluation],
        steps: tuple[EvaluatedStep, EvaluatedStep],
        contents: tuple[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]],
    ) -> None:
        """Prepare to ask.

        Args:
            sides: evaluated.
            steps: the same, as they were recorded.
            contents: of both sides' sources, by id, that were not taken as recorded.
        """
        self.sides = sides
        self._steps = steps
        self.contents = contents
        self.found: list[tuple[Value, Like]] = []
        self._left: float = min(_MOST_RUNS, _MOST_CALLS // max(1, len(steps[0].plans)))  # runs of the whole step
        self._region: Region | None = None  # all that lies behind the ends that are asked for
        self._behind: dict[tuple[int, int], tuple[Cone, Cone]] = {}  # by two values, those that they were asked of
        self.rows = OtherRows(sides)
        self._held: dict[int, torch.Tensor] = {}  # what the baseline's values are
        self._put_right: dict[int, tuple[torch.Tensor, int]] = {}  # values of the target that were replaced for good

    def of(self, sides: tuple[Evaluation, Evaluation]) -> Repair:
        """Return what asks the same of other evaluations of both sides, with what was put right."""
        found = copy(self)
        found.sides, found.found, found._behind = sides, [], {}
        found.rows = OtherRows(sides)
        return found

    def narrow(self, cones: tuple[Cone, Cone], odd: tuple[Sequence[End], Sequence[End]]) -> tuple[Cone, Cone]:
        """Return the parts of two cones behind the first value that repairs all ends; the same cones if none does."""
        self.found = self._find(cones, odd) if odd[0] and cones[0].calls and cones[1].calls else []
        narrowed = self.behind(*self.found[-1]) if self.found else cones
        return narrowed if narrowed[0].calls or narrowed[1].calls else cones

    @property
    def is_in_rows(self) -> bool:
        """True if the value that was narrowed to is one of which the baseline has the rows in other places."""
        return bool(self.found) and bool(self.found[-1][1].rows)

    @property
    def rows_apart(self) -> str:
        """Which rows of the value that was narrowed to are others than the baseline's, in a clause; "" if unknown."""
        value, like = self.found[-1] if self.found else (None, None)
        own = None if value is None or self._region is None else self._region.first(value)
        if (
            value is None
            or like is None
            or own is None
            or not like.rows
            or math.prod(value.shape[:-1]) != max(value.shape[:-1])
        ):
            return ""
        laid = like.laid(self._held[like.value.id], own).reshape(-1, own.shape[-1])
        apart = (laid - own.reshape(laid.shape)).abs().amax(-1) > _SAME_NORM * float(laid.abs().max())
        rows = apart.nonzero().flatten().tolist()
        shown = ", ".join(map(str, rows[:_MOST_ROWS])) + (", ..." if len(rows) > _MOST_ROWS else "")
        return f" in row{'s' if len(rows) > 1 else ''} {shown} of {len(laid)}, counted from 0" if rows else ""

    def behind(self, value: Value, stands: Like) -> tuple[Cone, Cone]:
        """Return what lies behind a value of the target, and behind what the baseline has there.

        What one side has with its dimensions in another order than the other side is right, and lies before the cut.
        """
        one, other = self.sides
        like = stands.value
        if (value.id, like.id) not in self._behind:
            holders: tuple[Set[int], Set[int]] = other.holders.keys(), one.holders.keys()
            if stands.rows:
                holders = self.rows.known(0), self.rows.known(1)
            cones = cone_of(one, holders[0], [value]), cone_of(other, holders[1], [like])
            known = self._in_other_orders(cones)
            if known:
                numbers = [
                    {side.numbers[number] for number in ids} for side, ids in zip(self.sides, known, strict=True)
                ]
                cones = (
                    cone_of(one, holders[0] | numbers[0], [value]),
                    cone_of(other, holders[1] | numbers[1], [like]),
                )
            self._behind[value.id, like.id] = cones
        return self._behind[value.id, like.id]

    def behind_proven(self, cones: tuple[Cone, Cone], value: Value, like: Value) -> tuple[Cone, Cone] | None:
        """Return what lies behind two values if a layout that is only supposed is no cut; None if that is no more.

        Args:
            cones: what lies behind them else.
            value: of the target.
            like: of the baseline.
        """
        one, other = self.sides
        if not other.supposed:
            return None
        found = cone_of(one, other.holders.keys() - other.supposed, [value])
        if found.calls.keys() <= cones[0].calls.keys():
            return None
        return found, cone_of(other, one.holders.keys() - one.supposed, [like])

    def _in_other_orders(self, cones: tuple[Cone, Cone]) -> tuple[set[int], set[int]] | None:
        """Return the ids of values of both cones that are the same but for the order of their dimensions."""
        one, other = self.sides
        made = list(_made(one, cones[0], other)), list(_made(other, cones[1], one))
        signatures = one.signatures, other.signatures
        asked = [
            (value, like)
            for _, value in made[0]
            for _, like in made[1]
            if value.numel == like.numel > 1
            and sorted(value.shape) == sorted(like.shape)
            and abs(signatures[0][value.id].norm - signatures[1][like.id].norm)
            <= _SAME_NORM * signatures[0][value.id].norm
        ]
        if not asked or sum(value.numel for pair in asked for value in pair) * torch.float64.itemsize > _MOST_BYTES:
            return None
        ours, theirs = (self._kept(side, {pair[side].id for pair in asked}) for side in (0, 1))
        found: tuple[set[int], set[int]] = (set(), set())
        for value, like in asked:
            tensor, whole = ours.get(value.id), theirs.get(like.id)
            if tensor is None or whole is None:
                continue
            if any(are_alike(tensor, one.laid(whole)) for one in _in_other_orders(value, [like])):
                found[0].add(value.id)
                found[1].add(like.id)
        return found if found[0] else None

    def region(self, cones: tuple[Cone, Cone], value: Value, like: Like) -> Asked | None:
        """Return the region of the target that makes a value, and what is at hand there.

        Args:
            cones: what lies behind the two values.
            value: of the target.
            like: what the baseline has there.

        Returns:
            None if it cannot be run alone, or is too large.
        """
        plans = self._plans(cones[0])
        if not 1 < len(plans) <= _MOST_OF_REGION:
            return None
        wanted, beside = self._going_into(plans), self._beside(plans)
        wanted |= {one.id: one for call in beside for _, one in call.output_values()}
        held, numbers = self.sides[0].holders, self.sides[1].numbers  # what the target has in parts is not held there
        cut = {number: one for number, one in cones[1].cut.items() if held.get(numbers.get(number, 0))}
        cut |= {one.id: one for one in _laid_otherwise(self.sides[1].flow, cones[1], set(cut))}
        if sum(one.numel for one in (*wanted.values(), *cut.values(), value)) * torch.float64.itemsize > _MOST_BYTES:
            return None
        given = self._kept(0, {*wanted, value.id})
        self._hold({*cut, like.value.id} - self._held.keys())
        recorded, right = given.get(value.id), self._held.get(like.value.id)
        if recorded is None or right is None:
            return None
        region = RegionToCorrect(plans, self._with_tensors(wanted, given), value, like.laid(right, recorded))
        others = [(one, self._held[one.id]) for one in cut.values() if one.id in self._held]
        return Asked(region, beside, others) if region.begin([(value, recorded)]) else None

    def alike(self, cones: tuple[Cone, Cone], last: Value) -> Iterator[RegionToCorrect]:
        """Yield regions that make what both sides make at one place, before a value: each twice as large as the last.

        Args:
            cones: what lies behind two values.
            last: the value of the target.
        """
        made = list(_made(self.sides[0], cones[0], self.sides[1])), list(_made(self.sides[1], cones[1], self.sides[0]))
        places = [ordinals((*place_of(call), tuple(value.shape)) for call, value in some) for some in made]
        at_place = {place: value for place, (_, value) in zip(places[1], made[1], strict=True)}
        size = 1
        for place, (_, value) in zip(places[0], made[0], strict=True):
            if value.id == last.id:
                return
            like = at_place.get(place)
            behind = (Cone(), Cone()) if like is None else self.behind(value, Like(like))
            if like is not None and len(behind[0].calls) > size:
                found = self.region(behind, value, Like(like))
                if found is not None:
                    size = 2 * len(found.region.plans)
                    yield found.region

    def _plans(self, cone: Cone) -> list[CallPlan]:
        """Return the calls of a cone of the target that can be run again, and those that made their memory."""
        plans = [plan for plan in self._steps[0].plans if plan.call.id in cone.calls and can_run(plan)]
        plans = self._with_memory(plans) if plans else plans
        return [plan for plan in plans if not any(one.id in self._put_right for one in plan.results.values())]

    def _going_into(self, plans: Sequence[CallPlan]) -> dict[int, Value]:
        """Return what some calls of the target read that none of them makes, by id."""
        flow, calls = self.sides[0].flow, {plan.call.id for plan in plans}
        found = {}
        for plan in plans:
            for _, one in plan.call.input_values():
                writer, maker = flow.writer(one), flow.maker(one)
                if not any(call is not None and call.id in calls for call in (maker, writer and writer[0])):
                    found[one.id] = one
        return found

    def _with_tensors(
        self, values: Mapping[int, Value], made: Mapping[int, torch.Tensor]
    ) -> list[tuple[Value, torch.Tensor]]:
        """Return values of the target with what they are: as they were made, or before the step."""
        known = ((one, made.get(number, self.sides[0].start_of(one))) for number, one in values.items())
        return [(one, tensor) for one, tensor in known if tensor is not None]

    def _all_behind(self, cone: Cone, ends: Sequence[End]) -> Region | None:
        """Return all that lies behind some ends, to be run with other values; None if it has to be evaluated anew.

        Memory that was not left by one call is known at the end of a whole step alone.
        """
        plans = self._plans(cone)
        made = sum(value.numel for plan in plans for value in plan.results.values())
        in_parts = any(end.buffer is not None and end.buffer.numel != end.value.numel for end in ends)
        if in_parts or any(plan.is_met for plan in plans):
            return None
        wanted, values = self._going_into(plans), [self._made_at(end) for end in ends]
        if (made + sum(one.numel for one in wanted.values())) * torch.float64.itemsize > _MOST_BYTES:
            return None
        given = self._kept(0, {*wanted, *(value.id for value in values)})
        region = Region(plans, self._with_tensors(wanted, given))
        is_known = all(value.id in given for value in values)
        return region if is_known and region.begin([(value, given[value.id]) for value in values]) else None

    def _made_at(self, end: End) -> Value:
        """Return the value of an end of the target that has a number: its own, or what its writer left."""
        writer = self.sides[0].flow.writer(end.value)
        return end.value if end.value.id in self.sides[0].numbers or writer is None else writer[2]

    def _beside(self, plans: Sequence[CallPlan]) -> list[Call]:
        """Return other calls that the functions of some calls make before the last one: what they make is at hand."""
        ids, last = {plan.call.id for plan in plans}, max(plan.call.id for plan in plans)
        functions = {_function(plan.call) for plan in plans} - {""}
        calls = (plan.call for plan in self._steps[0].plans if plan.call.id not in ids and plan.call.id < last)
        return [call for call in calls if _function(call) in functions][-_MOST_BESIDE:]

    def _with_memory(self, plans: list[CallPlan]) -> list[CallPlan]:
        """Return calls with those that made the memory which they write in place, or showed it to them."""
        storages = {value.storage for plan in plans for _, value in plan.call.written_values() if value.storage}
        ids, last = {plan.call.id for plan in plans}, max(plan.call.id for plan in plans)
        return [
            plan
            for plan in self._steps[0].plans
            if plan.call.id in ids
            or (
                plan.call.id < last
                and can_run(plan)
                and any(value.storage in storages for _, value in plan.call.output_values())
            )
        ]

    def without(
        self, differences: Sequence[tuple[Value, Value]], odd: tuple[Sequence[End], Sequence[End]]
    ) -> Evaluation | None:
        """Evaluate the target with some of its values put right for good; return None if an end changes with them.

        Args:
            differences: values of the target, each with what the baseline has there.
            odd: ends that differ.
        """
        flow, baseline = self.sides[0].flow, self.sides[1]
        made = {value.id: like for value, like in differences if flow.maker(value) is not None}
        starts = {value.id: baseline.start_of(like) for value, like in differences if value.id not in made}
        known = {number: tensor for number, tensor in starts.items() if tensor is not None}
        if not odd[0] or self._left < _MOST_OF_ONE or len(known) < len(starts):
            return None
        self._hold({like.id for like in made.values()})
        if any(like.id not in self._held for like in made.values()):
            return None
        before = self._put_right, self.contents
        self._put_right = before[0] | {
            number: (self._held[like.id], baseline.numbers[like.id]) for number, like in made.items()
        }
        self.contents = {**self.contents[0], **known}, self.contents[1]
        forward = [end for end in odd[0] if end.kind in FORWARD]
        again = self._again({}, (forward, odd[1])) if forward else None
        if not forward or (again is not None and not any(self._is_changed(again, end) for end in forward)):
            whole = self._again({}, odd, to_the_end=True)
            if whole is not None and not any(self._is_changed(whole, end) for end in odd[0]):
                return whole
        self._put_right, self.contents = before
        return None

    def _is_changed(self, again: Evaluation, end: End) -> bool:
        signatures = [
            side.signatures.get(end.value.id) if end.buffer is None else side.left_as(end.buffer)
            for side in (again, self.sides[0])
        ]
        return None in signatures or not is_equal(*signatures)  # type: ignore[arg-type]

    def _find(self, cones: tuple[Cone, Cone], odd: tuple[Sequence[End], Sequence[End]]) -> list[tuple[Value, Like]]:
        one, other = self.sides
        made = list(_made(one, cones[0], other)), list(_made(other, cones[1], one))
        options = sorted((*self._options(made), *self._turned(cones[0], made[1])), key=lambda option: option.call.id)
        self._region = self._all_behind(cones[0], odd[0])
        if self._region is not None:
            calls = {value.id: call for call, value in made[0]}
            others = (
                (calls[one.id], one, Like(two, rows=rows)) for one, two, rows in self.rows.find(calls, self._watch)
            )
            options = _joined(options, (_Option(call, value, [like]) for call, value, like in others))
        ends = {end.value.id for end in odd[0]}
        options = [option for option in options if option.value.id not in ends]
        likes = {like.value.id: like.value for option in options for like in option.likes}
        if not self._left or sum(like.numel for like in likes.values()) * torch.float64.itemsize > _MOST_BYTES:
            return []
        self._hold(likes)
        if self._region is not None and sum(len(option.likes) for option in options) <= _MOST_ASKED:
            return [*self._all_that_repair(options, odd)][::-1]
        found: list[tuple[Value, Like]] = []
        while options and self._left > 0:
            places = self._first_that_repairs(options, odd)
            if not places:
                break
            found += [(options[at].value, like) for at, like in places]
            place = places[-1]
            option = options[place[0]]
            behind = cone_of(self.sides[0], self.sides[1].holders, [option.value]).calls
            options = [one for one in options[: place[0]] if one.call.id in behind]
        return found

    def _options(self, made: Sequence[Sequence[tuple[Call, Value]]]) -> list[_Option]:
        """Return the values of the target of which the baseline has some of as many elements, in execution order."""
        by_size: dict[int, list[tuple[Call, Value]]] = defaultdict(list)
        for call, value in made[1]:
            by_size[value.numel].append((call, value))
        places = [ordinals((*place_of(call), value.numel) for call, value in some) for some in made]
        ops = [ordinals((call.op, call.phase, value.numel) for call, value in some) for some in made]
        at_place = {one: value for one, (_, value) in zip(places[1], made[1], strict=True)}
        of_op = {one: value for one, (_, value) in zip(ops[1], made[1], strict=True)}
        found = []
        for (call, value), place, op in zip(made[0], places[0], ops[0], strict=True):
            likes = [like for like in (at_place.get(place), of_op.get(op)) if like is not None]
            nearest = self._nearest(value, by_size[value.numel], call.phase)
            likes = list({like.id: like for like in (*likes, *nearest)}.values())
            if likes:
                found.append(_Option(call, value, [*map(Like, likes), *_in_other_orders(value, likes)]))
        return found

    def _turned(self, cone: Cone, others: Sequence[tuple[Call, Value]]) -> Iterator[_Option]:
        """Yield views of the target that bring elements into the order in which the baseline may make them."""
        signatures = self.sides[0].signatures, self.sides[1].signatures
        flow = self.sides[0].flow
        for call in filter(flow.is_view, cone.calls.values()):
            given = next((value for _, value in flow.reads(call)), None)
            known = None if given is None else signatures[0].get(given.id)
            if given is None or known is None:
                continue
            for _, value in call.output_values():
                alike = [like for other, like in others if like.shape == value.shape and other.phase == call.phase]
                if alike and value.numel == given.numel and _is_turned(value):
                    apart = {like.id: abs(known.norm - signatures[1][like.id].norm) for like in alike}
                    alike = sorted(alike, key=lambda like: apart[like.id])[:_MOST_LIKES]
                    yield _Option(call, value, [*map(Like, alike)])

    def _nearest(self, value: Value, others: Sequence[tuple[Call, Value]], phase: str) -> list[Value]:
        own = self.sides[0].signatures[value.id]
        signatures = self.sides[1].signatures
        found = [one for call, one in others if call.phase == phase]
        by_contents = sorted(found, key=lambda one: distance(own, signatures[one.id]))
        by_norm = sorted(found, key=lambda one: abs(own.norm - signatures[one.id].norm))
        return [*by_contents[:1], *by_norm[:1]]

    def _all_that_repair(
        self, options: Sequence[_Option], odd: tuple[Sequence[End], Sequence[End]]
    ) -> Iterator[tuple[Value, Like]]:
        """Yield the first options that repair all ends, in execution order, and with what."""
        found = 0
        for option in options:
            if found == _MOST_FOUND or self._left <= 0:
                return
            like = next((one for one in option.likes if self._repairs(option.value, one, odd)), None)
            if like is not None:
                found += 1
                yield option.value, like

    def _first_that_repairs(
        self, options: Sequence[_Option], odd: tuple[Sequence[End], Sequence[End]]
    ) -> list[tuple[int, Like]]:
        """Return the places of options that repair all ends, the last one first, and with what."""
        found: list[tuple[int, Like]] = []
        low, high = 0, len(options)
        while low < high and self._left > 0:
            middle = low if high - low <= _ONE_BY_ONE else (low + high) // 2
            like = next((one for one in options[middle].likes if self._repairs(options[middle].value, one, odd)), None)
            if like is None:
                low = middle + 1
            else:
                found.append((middle, like))
                high = middle
        return found

    def _hold(self, wanted: Collection[int]) -> None:
        """Evaluate the baseline once more, until some values are made, and keep these."""
        self._held |= self._kept(1, wanted)

    def _kept(self, side: int, wanted: Collection[int]) -> dict[int, torch.Tensor]:
        """Evaluate a side once more, until some values are made or loaded, and return these."""
        again = self._anew(side)
        found: dict[int, torch.Tensor] = {}

        def keep(value: Value, tensor: torch.Tensor) -> None:
            if value.id in wanted:
                found[value.id] = tensor.detach().clone()

        def stop(call: Call) -> None:
            for _, value in call.input_values():  # memory that was written in parts is a value where it is read
                if value.id in wanted and value.id not in found and value.id not in written_ids(call):
                    tensor = again.held(value)
                    if tensor is not None:
                        found[value.id] = tensor.detach().clone()
            if len(found) == len(wanted):
                raise _AllMadeError

        again.watch_all, again.watch_calls = keep, stop
        with suppress(_AllMadeError):
            again.run()
        return found

    def _anew(self, side: int) -> Evaluation:
        """Return an evaluation of a side that was not run, with what was put right."""
        found = Evaluation(self._steps[side], Shared(self.sides[side].numbering), self.contents[side])
        found.replaced = self._put_right if side == 0 else {}
        return found

    def _watch(self, side: int, keep: Callable[[Value, torch.Tensor], None]) -> None:
        """Evaluate a side once more, and call a function with each value and its tensor."""
        again = self._anew(side)
        again.watch_all = keep
        again.run()

    def _repairs(self, value: Value, like: Like, odd: tuple[Sequence[End], Sequence[End]]) -> bool:
        """Return True if all ends come out right with one value in the place of another."""
        held = self._held.get(like.value.id)
        if held is None or held.is_complex() != value.dtype.is_complex:
            return False
        if self._region is not None:
            own = self._region.first(value) if like.rows else None
            return self._repairs_region(self._region, value, like.laid(held, own), odd)
        number = self.sides[1].numbering.new() if like.order else self.sides[1].numbers[like.value.id]
        again = self._again({value.id: (like.laid(held), number)}, odd)
        return again is not None and all(_is_as_there(end, self._number_in(again, end), odd[1]) for end in odd[0])

    def _repairs_region(
        self, region: Region, value: Value, tensor: torch.Tensor, odd: tuple[Sequence[End], Sequence[End]]
    ) -> bool:
        """Return True if all ends come out right with a value in a region replaced."""
        before = region.calls_run
        try:
            find = region.replaced(value, tensor)
        except ReplayError:  # it cannot stand there
            return False
        finally:
            self._left -= _OF_REGION * (region.calls_run - before) / len(self._steps[0].plans)
        for end in odd[0]:
            there = self._made_at(end)
            made = find(there)
            if made is None:
                return False
            number = self.sides[0].numbering.number(sign(once(self._steps[0].defined(there, made))))
            if not _is_as_there(end, number, odd[1]):
                return False
        return True

    def _again(
        self,
        replaced: Mapping[int, tuple[torch.Tensor, int]],
        odd: tuple[Sequence[End], Sequence[End]],
        *,
        to_the_end: bool = False,
    ) -> Evaluation | None:
        """Evaluate the target with some values replaced, until its ends are made; None if that cannot be done."""
        self._left -= 1
        again = Evaluation(self._steps[0], Shared(self.sides[0].numbering), self.contents[0])
        again.replaced = {**self._put_right, **replaced}
        if not to_the_end and all(end.kind in FORWARD for end in odd[0]):

            def stop(_: Call) -> None:
                if all(number_of(again, end.value) is not None for end in odd[0]):
                    raise _AllMadeError

            again.watch_calls = stop
        try:
            with suppress(_AllMadeError):
                again.run()
        except ReplayError:  # it cannot stand there
            return None
        return again

    @staticmethod
    def _number_in(again: Evaluation, end: End) -> int | None:
        return number_of(again, end.value) if end.buffer is None else again.at_end.get(end.buffer.id)


def _is_as_there(end: End, number: int | None, others: Sequence[End]) -> bool:
    """Return True if an end came out with the number of the baseline's end of its name, or of one of the baseline's."""
    named = [other.number for other in others if (other.kind, other.name) == (end.kind, end.name)]
    return number is not None and number in (named or [other.number for other in others])


def _joined(options: Sequence[_Option], others: Iterable[_Option]) -> list[_Option]:
    """Return options in execution order; those of one value are one."""
    found = {option.value.id: option for option in options}
    for option in others:
        known = found.setdefault(option.value.id, option)
        if known is not option:
            known.likes += option.likes
    return sorted(found.values(), key=lambda option: option.call.id)


def _made(side: Evaluation, cone: Cone, other: Evaluation) -> Iterator[tuple[Call, Value]]:
    """Yield the calls of a cone with what they make of floats that the other side does not have."""
    for _, call in sorted(cone.calls.items()):
        for _, value in side.flow.results(call):
            number = side.numbers.get(value.id)
            is_plain = value.is_floating and value.layout_name == "strided"
            if is_plain and value.id in side.signatures and number not in other.holders:
                yield call, value


def _function(call: Call) -> str:
    """Return the function of the program that makes a call, and whence it was called."""
    return call.where.partition(" in ")[2]


def _in_other_orders(value: Value, likes: Sequence[Value]) -> Iterator[Like]:
    """Yield values with the sizes of one in another order: [n, c, h, w] for [n, h, w, c]."""
    for like in likes:
        if like.shape == value.shape or sorted(like.shape) != sorted(value.shape) or len(like.shape) > _MOST_DIMS:
            continue
        orders = (order for order in permutations(range(len(like.shape))) if order != tuple(range(len(like.shape))))
        fitting = (order for order in orders if tuple(like.shape[dim] for dim in order) == tuple(value.shape))
        yield from (Like(like, order) for order in islice(fitting, _MOST_LIKES))


def _laid_otherwise(flow: DataFlow, cone: Cone, known: set[int]) -> Iterator[Value]:
    """Yield what the first calls of a cone make of known values, if they do no more than lay these otherwise."""
    for _, call in sorted(cone.calls.items()):
        given = call.input_values()
        is_moving = flow.is_view(call) or (moves_elements(call.op) and not call.mutated)
        if is_moving and given and all(value.id in known for _, value in given):
            for _, value in call.output_values():
                known.add(value.id)
                yield value


def _is_turned(value: Value) -> bool:
    """Return True if a tensor does not lie in memory in the order of its dimensions."""
    steps = [step for size, step in zip(value.shape, value.stride, strict=True) if size > 1]
    return any(one < other for one, other in pairwise(steps))
