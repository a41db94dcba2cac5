"""What a program takes away from a step: what its modules return to it, and what it computes and hands on to no call.

Theory of operation
    What the outermost module call returned is a result if nobody computes with it in the step: an inference returns it.
    Where one side goes on with it, that may be the other's program written otherwise (a softmax inside the model, or
    behind it); so what comes of it there is asked too. Of other results it is not known which belong together:
    those that have no counterpart are put together by their shapes, and if they differ nobody is accused. Where one
    side takes a result away and the other makes another of its shape of it, nobody knows which of the two that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from ...dump import Call, Value
from ..evidence.evidence_rows import Pair
from ..flow.counterparts import Side
from ..flow.flat_memory import has_parts
from ..flow.taken_results import TakenResults
from ..rerun.shared_memory import moment_of
from .knowledge import Knowledge

_BOTH_WAYS: Final[tuple[tuple[Side, Side], ...]] = ((0, 1), (1, 0))
_MOST_TRIED: Final = 4  # results that may be what the other side returned


class TakenAway:
    """Finds the results of two recordings that belong together."""

    def __init__(
        self, knows: Knowledge, aligned: Sequence[Pair], losses: tuple[Sequence[Value], Sequence[Value]]
    ) -> None:
        """Prepare to look.

        Args:
            knows: what is known of both sides.
            aligned: pairs of calls of every kind.
            losses: of both sides; they are compared as such.
        """
        self._knows = knows
        self._aligned = aligned
        self._losses = tuple({value.id for value in side} for side in losses)
        self._same: tuple[set[int], set[int]] = set(), set()  # ids of results that mean the same
        self._taken = TakenResults(knows.flows[0]), TakenResults(knows.flows[1])

    @cached_property
    def all(self) -> tuple[list[Value], list[Value]]:
        """What both sides took away."""
        return self._taken[0].all(), self._taken[1].all()

    # -- what modules returned --------------------------------------------------------------------------------------

    def of_modules(self) -> Iterator[tuple[str, Value, Value]]:
        """Yield what outermost modules returned for good, with its name.

        Where calls were aligned whose results have their counterparts elsewhere, what is left of both sides goes
        together, and what one side has more of is its own affair.
        """
        left: tuple[list[tuple[str, Value]], list[Value]] = [], []
        for call, slot, target, baseline in self._of_aligned():
            elsewhere = self._is_elsewhere(0, slot, target, baseline), self._is_elsewhere(1, slot, baseline, target)
            name = f"result ({slot} of {call})"
            if not any(elsewhere):
                yield name, target, baseline
            elif not elsewhere[0]:
                left[0].append((name, target))
            elif not elsewhere[1]:
                left[1].append(baseline)
        for (name, target), baseline in zip(*left, strict=False):
            yield name, target, baseline

    def _of_aligned(self) -> Iterator[tuple[str, str, Value, Value]]:
        for pair in self._aligned if self._knows.tells_memory else ():
            if not (_is_outermost(pair.target) and _is_outermost(pair.baseline)):
                continue
            theirs = dict(pair.baseline.output_values())
            for slot, value in pair.target.output_values():
                other = theirs.get(slot)
                if other is not None and self._is_result(pair, value, other):
                    yield pair.target.name, slot, value, other

    def _is_elsewhere(self, side: Side, slot: str, value: Value, other: Value) -> bool:
        """Tell whether the counterpart of a module's result is what another call of a module returned in its place."""
        partner = self._knows.known.partner(side, value)
        return partner is not None and partner.id != other.id and (slot, partner.id) in self._returned[1 - side]

    @cached_property
    def _returned(self) -> tuple[dict[tuple[str, int], Value], dict[tuple[str, int], Value]]:
        """What outermost modules returned, by slots and ids, on both sides."""
        ranks = self._knows.target, self._knows.baseline
        calls = ([*filter(_is_outermost, rank.calls.filter(kind="module"))] for rank in ranks)
        one, other = ({(slot, v.id): v for call in side for slot, v in call.output_values()} for side in calls)
        return one, other

    def _is_result(self, pair: Pair, target: Value, baseline: Value) -> bool:
        if target.id in self._losses[0] or baseline.id in self._losses[1] or not _is_told(target, baseline):
            return False
        if target.shape != baseline.shape and not _is_given_alike(pair):
            return False  # another batch
        calls = pair.target, pair.baseline
        values = target, baseline
        if not any(self._taken[side].is_made(values[side]) for side in (0, 1)):
            return False
        taken = [self._taken[side].is_taken(calls[side], values[side]) for side in (0, 1)]
        if all(taken):
            return True
        return any(taken) and not self._became(1 if taken[0] else 0, values)

    def _became(self, side: Side, values: tuple[Value, Value]) -> bool:
        """Tell whether the side that went on with what a module returned arrived at what the other side has.

        It may have handed it to the module again, as the state of a recurrent network, which then returned that.
        """
        if self._knows.wiring.state(*values) is not None:
            return True
        wanted = values[1 - side]
        for made in (self.all[side], self._returned[side].values()):
            later = [v for v in made if v.id > values[side].id and v.shape == wanted.shape][:_MOST_TRIED]
            if any(self._means_same(side, found, wanted) for found in later):
                return True
        return False

    def _means_same(self, side: Side, value: Value, other: Value) -> bool:
        target, baseline = (other, value) if side else (value, other)
        if self._knows.wiring.state(target, baseline) is not None:
            return True
        return self._knows.regions.mean_the_same(target, baseline)

    # -- other results ----------------------------------------------------------------------------------------------

    def of_calls(self) -> Iterator[tuple[str, Value, Value]]:
        """Yield results without a counterpart that may belong together, with their names."""
        if not self._knows.tells_all:
            return
        ours, theirs = self._without_counterpart(0), self._without_counterpart(1)
        for shape in ours.keys() & theirs.keys():
            targets, baselines = list(ours[shape]), list(theirs[shape])
            for target in ours[shape]:
                same = next((v for v in baselines if self._means_same(0, target, v)), None)
                if same is not None:
                    self._same[0].add(target.id)
                    self._same[1].add(same.id)
                    targets.remove(target)
                    baselines.remove(same)
            if len(targets) == len(baselines):
                yield from (("result", *pair) for pair in zip(targets, baselines, strict=True))

    def unclear(self) -> Iterator[tuple[str, Value, Value]]:
        """Yield results of which one side made more than the other took away, with their names; after `of_calls`."""
        if not self._knows.tells_all:
            return
        for side, other in _BOTH_WAYS:
            taken = {value.id for value in self.all[other]}
            for value in self.all[side]:
                partner = self._knows.known.partner(side, value)
                if partner is None or partner.id in taken or value.id in self._losses[side]:
                    continue
                for more in self._made_of(other, partner):
                    if self._means_same(other, more, value):
                        continue  # as a cast of it
                    maker = self._knows.flows[other].maker(more)
                    name = "result" if maker is None else f"result ({maker.name})"
                    yield (name, value, more) if other else (name, more, value)

    def _made_of(self, side: Side, value: Value) -> list[Value]:
        """Return the results of the shape of a value that calls without a counterpart make of it, in other memory."""
        found = self._without_counterpart(side).get(_kind(value), ())
        others = [v for v in found if v.id not in self._same[side] and (not v.storage or v.storage != value.storage)]
        return [v for v in others if self._stands_on(side, v, value)]

    def _stands_on(self, side: Side, result: Value, value: Value) -> bool:
        cut = self._knows.regions.cone(side, [result]).cut
        return any(v.id == value.id or (v.storage and moment_of(v) == moment_of(value)) for v in cut)

    def _without_counterpart(self, side: Side) -> dict[tuple[object, ...], list[Value]]:
        found: dict[tuple[object, ...], list[Value]] = {}
        for value in self.all[side]:
            if value.id not in self._losses[side] and not self._knows.known.is_known(side, value):
                found.setdefault(_kind(value), []).append(value)
        return found


def _kind(value: Value) -> tuple[object, ...]:
    return tuple(value.shape), value.is_floating


def _is_outermost(call: Call) -> bool:
    return call.kind == "module" and call.phase == "forward" and call.parent is None


def _is_given_alike(pair: Pair) -> bool:
    """Tell whether both calls were given tensors of the same shapes."""
    given = [[(slot, v.shape) for slot, v in call.input_values()] for call in (pair.target, pair.baseline)]
    return given[0] == given[1]


def _is_told(target: Value, baseline: Value) -> bool:
    """Tell whether it is known what one of two values holds, and how parts on several ranks make them up."""
    if target.unsettled or baseline.unsettled or has_parts(target) != has_parts(baseline):
        return False
    return not (target.undefined and baseline.undefined)
