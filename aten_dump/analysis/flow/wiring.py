"""Are two values that stand at one place the same thing? What the walk knows by then, without running anything.

Theory of operation
    They are if both were made by calls that are each other's counterpart, as the same result, and are seen through the
    same view; or if they hold the same bits. Where geometry cannot tell (tensors put together of several ranks), a view
    is the same if the calls that made it are paired and were given the same. A sparse tensor that was written through
    its parts is the same if they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...dump import Call, Value
from ..evidence.states import WORSE, State
from .counterparts import Counterparts
from .data_flow import DataFlow, written_parts
from .same_view import ViewComparer


class Wiring:
    """Tells what is known of two values; `pairs` has the baseline's call by id of the target's."""

    def __init__(
        self,
        flows: tuple[DataFlow, DataFlow],
        known: Counterparts,
        same_arguments: Callable[[Call, Call], bool],
    ) -> None:
        self.pairs: dict[int, Call] = {}
        self._flows = flows
        self._known = known
        self._same_arguments = same_arguments
        self._views = ViewComparer()

    def state(self, target: Value, baseline: Value) -> State | None:
        """Return the state of two values that are the same thing; None where that is not known."""
        found = self._known.find(target, baseline)
        if found is not None:
            return found
        if self._known.close(target, baseline).bitwise:
            found = State("same", depth=self._depth(target))
        else:
            ways = self._as_written, self._as_shown, self._as_parts
            found = next((state for way in ways if (state := way(target, baseline)) is not None), None)
        if found is not None:
            self._known.keep(target, baseline, found)
        return found

    def is_from_outside(self, target: Value, baseline: Value) -> bool:
        """Tell whether no call made either of two values."""
        sides = zip(self._flows, (target, baseline), strict=True)
        return all(flow.maker(value) is None and not written_parts(flow, value) for flow, value in sides)

    def reads_of_pairs(self, target: Call, baseline: Call) -> bool:
        """Tell whether all that two calls read comes from outside, or was made by calls that are a pair."""
        theirs = dict(self._flows[1].reads(baseline))
        for slot, value in self._flows[0].reads(target):
            other = theirs.get(slot)
            if other is None or value.shape != other.shape:
                return False
            ours, made = self._flows[0].writer(value), self._flows[1].writer(other)
            if (ours is None) != (made is None) or (ours and made and not self._is_pair(ours[0], made[0])):
                return False
        return True

    def _depth(self, value: Value) -> int:
        state = self._known.state_of(value)
        return 0 if state is None else state.depth

    def _as_written(self, target: Value, baseline: Value) -> State | None:
        """Return the state of what both see, if the calls that wrote their memory are paired."""
        one, other = self._flows[0].writer(target), self._flows[1].writer(baseline)
        if one is None or other is None or not self._is_pair(one[0], other[0]):
            return self._beside(target, baseline)
        made = self._known.find(one[2], other[2])
        if made is None or not self._views.same((target, one[2]), (baseline, other[2])):
            return None
        return self._through_view(made, target, baseline)

    def _beside(self, target: Value, baseline: Value) -> State | None:
        """Return the state of two views of memory from outside, as far as it was seen whole."""
        if target.composed or baseline.composed or not self.is_from_outside(target, baseline):
            return None
        for mine in self._flows[0].of_moment(target):
            theirs = self._known.partner(0, mine)
            if theirs is None or (theirs.storage, theirs.version) != (baseline.storage, baseline.version):
                continue
            made = self._known.find(mine, theirs)
            if made is not None and self._views.same((target, mine), (baseline, theirs)):
                return self._through_view(made, target, baseline)
        return None

    def _as_shown(self, target: Value, baseline: Value) -> State | None:
        """Return the state of two views that paired calls made of counterparts."""
        one, other = self._flows[0].maker(target), self._flows[1].maker(baseline)
        if one is None or other is None or not self._is_pair(one, other) or not self._flows[0].is_view(one):
            return None
        if self._flows[0].slot_of(one, target) != self._flows[1].slot_of(other, baseline):
            return None  # another part of a split
        if not self._same_arguments(one, other):
            return None
        given, theirs = one.input_values(), dict(other.input_values())
        if not given or given[0][0] not in theirs:
            return None
        made = self._known.find(given[0][1], theirs[given[0][0]])
        return None if made is None else self._through_view(made, target, baseline)

    def _as_parts(self, target: Value, baseline: Value) -> State | None:
        """Return the state of two sparse tensors that were written through their parts."""
        ours, theirs = written_parts(self._flows[0], target), written_parts(self._flows[1], baseline)
        if not ours or ours.keys() != theirs.keys() or target.shape != baseline.shape:
            return None
        states = [self.state(part, theirs[name]) for name, part in ours.items()]
        known = [state for state in states if state is not None]
        if len(known) < len(states):
            return None
        return self._through_view(max(known, key=lambda state: WORSE[state.status]), target, baseline)

    def _is_pair(self, target: Call, baseline: Call) -> bool:
        found = self.pairs.get(target.id)
        return found is not None and found.id == baseline.id

    def _through_view(self, made: State, target: Value, baseline: Value) -> State:
        """Return the state of a view of what has a state."""
        if made.status == "same":  # or the bits would be equal
            return replace(made, status="within")
        close = self._known.close(target, baseline)
        return replace(made, error=close.error or 0.0)
