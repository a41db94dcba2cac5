"""Memory that outlives the step: which places of both sides are the same, and which one side alone writes.

Theory of operation
    Memory from outside (parameters, buffers, the optimizer's state) and what the optimizer made as its state is left
    behind with its last value. Where calls that are paired read or wrote it, it has a counterpart. Memory that only
    calls without a counterpart write (a loop against a foreach) is told by what it held: the same bits, or the nearest
    that it may be. What is left then is written by one side alone, and that is a difference of what both leave, unless
    the other side made the same anew (``average = 0.9 * average + 0.1 * weight``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..distance.value_distance import Closeness, has_equal_statistics
from ..evidence.evidence_rows import Pair
from ..evidence.states import State
from ..flow.counterparts import Side
from ..flow.data_flow import DataFlow
from ..flow.leaves import named_leaves
from ..flow.left_memory import LeftMemory, LeftPlace
from ..flow.same_view import covers
from ..outcomes.made_state import MadeState
from ..outcomes.updates import MAKES_STATE
from .knowledge import Knowledge
from .taken_away import TakenAway

_MOST_MADE_ANEW: Final = 4  # results of the other side that are tried
_MOST_READERS: Final = 16  # calls that are looked through for them
_SIDES: Final[tuple[Side, Side]] = (0, 1)


class LeftBehind:
    """Finds what two recordings leave in memory; `unsure` says that there were writes that nobody saw."""

    def __init__(self, knows: Knowledge, taken: TakenAway, *, unsure: bool) -> None:
        self._knows = knows
        self._taken = taken
        self._unsure = unsure
        self._memory = [LeftMemory(flow, read_data=knows.known.read_data) for flow in knows.flows]
        self._seen: tuple[set[int], set[int]] = set(), set()  # ids of last values that have a counterpart
        self._yielded: set[tuple[int, int]] = set()
        self._made_state = MadeState(self._memory, knows.flows, knows.known, knows.regions)
        self.made_anew: list[tuple[Value, Value]] = []  # what one side wrote, the other only made

    def pairs(self) -> Iterator[tuple[Value, Value]]:
        """Yield what both sides left at one place."""
        if self._knows.tells_memory:
            yield from self._of_counterparts()
        if self._knows.tells_all:
            self._tie_by_contents()
            yield from self._of_places()

    def alone(self) -> Iterator[tuple[Side, LeftPlace]]:
        """Yield the places that one side alone wrote; after `pairs`."""
        if self._unsure or not self._knows.tells_all:
            return
        for side in _SIDES:
            memory = self._memory[side]
            for place in self._open(side):
                if not memory.is_state(place) or self._shows_in_parameters(side, place):
                    continue
                if _lies_in(place.last, (v for v in self._last[side].values() if v.id in self._seen[side])):
                    continue
                if self._made_anew(side, place.last) is None and not self._made_state.takes(side, place.last):
                    yield side, place

    def belongs_to_model(self, side: Side, place: LeftPlace) -> bool:
        """Tell whether a place is the model's or is made of what is, not what the program around it counts."""
        return self._memory[side].belongs_to_model(place)

    def name(self, side: Side, value: Value) -> str:
        """Return what to call the place of a value: a parameter by its name, other memory by how it looks."""
        leaves = named_leaves(self._knows.flows[side], self._knows.links.leaf_gradients[side])
        named = {value.record.place: name for name, value in leaves.items()}
        found = named.get(value.record.place)
        return found or f"memory ({value.dtype_name}{list(value.shape)})"

    def have_others(self, target: Value, baseline: Value) -> bool:
        """Tell whether what was left at two places is right, and known so, against another place each.

        Calls that belong to two places were taken for a pair there, as both held the same bits: moments before the
        first step, a network and its copy before either was written.

        Args:
            target: what the target left at its place.
            baseline: what the baseline left at another one.
        """
        known = self._knows.known
        own = known.partner(0, target), known.partner(1, baseline)
        if own[0] is None or own[1] is None or baseline.record.place == own[0].record.place:
            return False
        states = known.find(target, own[0]), known.find(own[1], baseline)
        return all(state is not None and state.status in ("same", "within") for state in states)

    def read_as_one(self, target: Value, baseline: Value) -> tuple[Pair, str] | None:
        """Return the first calls, and the slot, that read two such places as one.

        Calls that write there themselves are each the right one for its place, and were no pair.
        """
        for call, slot in sorted(_reads(self._knows.flows[0], target), key=lambda item: item[0].id):
            other = self._knows.wiring.pairs.get(call.id)
            read = None if other is None else dict(other.input_values()).get(slot)
            if other is None or read is None or read.record.place != baseline.record.place:
                continue
            if not (_writes(call, target) and _writes(other, baseline)):
                return Pair(call, other, "order"), slot
        return None

    # -- places with a counterpart ----------------------------------------------------------------------------------

    def _of_counterparts(self) -> Iterator[tuple[Value, Value]]:
        """Yield what was left where a pair of counterparts lies that outlives the step."""
        knows = self._knows
        for target, baseline in knows.known.pairs():
            if target.composed or not self._lasts(target, baseline):
                continue
            ends = [side.get(v.record.place, v) for side, v in zip(self._last, (target, baseline), strict=True)]
            yield from self._once(ends, (ends[0].id != target.id, ends[1].id != baseline.id))

    def _moved(self, ends: Sequence[Value], changed: tuple[bool, bool]) -> bool:
        """Tell whether one side left its place for other memory (``p.data = ...``), which holds what the other wrote.

        It did where the optimizer went on writing there. Where that was made anew and no more, the program may
        as well have dropped it: the steps before and after tell, or nobody knows.
        """
        for side in (side for side in _SIDES if changed[side]):
            if self._is_written_elsewhere(side, ends):
                return True
            if changed[1 - side]:
                continue
            made = self._made_anew(side, ends[side])
            found = [made] if made is not None else self._read_too(side, ends[side])
            keeps = [self._knows.sources.keeps(1 - side, value, ends[1 - side]) for value in found]
            if True in keeps:
                return True
            if made is not None and None in keeps:
                self.made_anew.append((ends[0], ends[1]))
                return True
        return False

    def _is_written_elsewhere(self, side: Side, ends: Sequence[Value]) -> bool:
        """Tell whether the other side's optimizer wrote what one side left, in place, to memory that the step made."""
        other: Side = 0 if side else 1
        known = self._knows.known
        partner = known.partner(side, ends[side])
        if partner is None or partner.from_outside or not partner.storage or not _by_optimizer(partner):
            return False
        place = partner.record.place
        if place == ends[other].record.place or self._last[other].get(place, partner).id != partner.id:
            return False
        state = known.find(*((partner, ends[1]) if side else (ends[0], partner)))
        return state is not None and state.status in ("same", "within")

    @property
    def _last(self) -> list[dict[tuple[object, ...], Value]]:
        """The last value of each place that was written, on both sides."""
        return [memory.last for memory in self._memory]

    def _once(self, ends: Sequence[Value], changed: tuple[bool, bool]) -> Iterator[tuple[Value, Value]]:
        if not any(changed):
            return
        target, baseline = ends
        is_new = (target.id, baseline.id) not in self._yielded
        self._yielded.add((target.id, baseline.id))
        self._seen[0].add(target.id)
        self._seen[1].add(baseline.id)
        known = self._knows.wiring.state(target, baseline) is not None
        if not is_new or self._moved(ends, changed):
            return
        if known or not self._unsure or any(map(_by_optimizer, (target, baseline))):
            yield target, baseline

    def _lasts(self, target: Value, baseline: Value) -> bool:
        """Tell whether memory outlives the step: it came from outside, or the optimizer made it as its state."""
        makers = [flow.maker(v) for flow, v in zip(self._knows.flows, (target, baseline), strict=True)]
        if makers == [None, None]:
            return True
        return all(
            call is not None and call.phase == "optimizer" and read_op_name(call.op).name in MAKES_STATE
            for call in makers
        )

    # -- places that no pair of calls read --------------------------------------------------------------------------

    def _open(self, side: Side) -> list[LeftPlace]:
        """Return the places of one side of whose last value nothing is known."""
        known = self._knows.known
        return [
            place
            for place in self._memory[side].places
            if place.last.id not in self._seen[side] and not known.is_known(side, place.last)
        ]

    def _tie_by_contents(self) -> None:
        """Find out which memory of both sides is the same, of what only calls without a counterpart wrote."""
        knows = self._knows
        for side in _SIDES:
            for place in self._open(side):
                if not knows.known.is_known(side, place.before):
                    knows.links.tie(side, place.before)
        ours, theirs = self._unknown(0), self._unknown(1)
        for target in list(ours):
            same = next((v for v in theirs if _is_same(knows.known.close(target, v)) and _alike(target, v)), None)
            if same is not None:
                knows.known.keep(target, same, State("same"))
                ours.remove(target)
                theirs.remove(same)
        knows.links.tie_alike(ours, theirs)

    def _unknown(self, side: Side) -> list[Value]:
        known = self._knows.known
        return [place.before for place in self._open(side) if not known.is_known(side, place.before)]

    def _of_places(self) -> Iterator[tuple[Value, Value]]:
        """Yield what was left at places that had a counterpart at any time in the step."""
        knows = self._knows
        for side in _SIDES:
            for place in self._open(side):
                earlier = knows.flows[side].earlier(place.last)
                partner = next((p for v in earlier if (p := knows.known.partner(side, v)) is not None), None)
                if partner is not None and partner.from_outside:
                    other = self._last[1 - side].get(partner.record.place, partner)
                    has_changed = other.id != partner.id
                    if side:
                        yield from self._once((other, place.last), (has_changed, True))
                    else:
                        yield from self._once((place.last, other), (True, has_changed))

    # -- places that one side alone wrote ---------------------------------------------------------------------------

    def _shows_in_parameters(self, side: Side, place: LeftPlace) -> bool:
        """Tell whether a fused optimizer keeps it beside the parameters: it may lie otherwise on the other side."""
        if place.writer.phase != "optimizer":
            return False
        known = self._knows.known
        return any(v.id in self._seen[side] or known.is_known(side, v) for _, v in place.writer.written_values())

    def _made_anew(self, side: Side, value: Value) -> Value | None:
        """Return what the other side made, as memory was left, and took away; None where it made nothing like it."""
        other: Side = 0 if side else 1
        made = [v for v in self._taken.all[other] if _alike(v, value)]
        return next(
            (result for result in made[:_MOST_MADE_ANEW] if _mean_the_same(self._knows, side, value, result)), None
        )

    def _read_too(self, side: Side, value: Value) -> list[Value]:
        """Return what the other side made, as memory was left, and reads in the step too (``self.hidden = h``)."""
        writer = self._knows.flows[side].writer(value)
        given = () if writer is None else writer[0].input_values()
        known, flows = self._knows.known, self._knows.flows
        partners = (known.partner(side, read) for _, read in given)
        made = [v for v in partners if v is not None and v.producer is not None and _alike(v, value)]
        old = next((p for v in flows[side].earlier(value) if (p := known.partner(side, v)) is not None), None)
        made += _made_of_old(flows[1 - side], old, value)
        return [v for v in made if _mean_the_same(self._knows, side, value, v)]


def _made_of_old(flow: DataFlow, old: Value | None, wanted: Value) -> list[Value]:
    """Return what a program first made of what its memory held (``state["m"] = 0.9 * state["m"] + ...``)."""
    waiting = {} if old is None else {call.id: call for call, _ in old.consumers if call.kind == "aten"}
    made: dict[int, Value] = {}
    for _ in range(_MOST_READERS):
        if not waiting or len(made) >= _MOST_MADE_ANEW:
            break
        call = waiting.pop(min(waiting))
        made |= {v.id: v for _, v in flow.results(call) if _alike(v, wanted) and not v.from_outside}
        waiting |= {reader.id: reader for reader in flow.readers(call)}
    return list(made.values())


def _mean_the_same(knows: Knowledge, side: Side, value: Value, result: Value) -> bool:
    """Tell whether a value and what the other side made are the same, or come of the same."""
    target, baseline = (result, value) if side else (value, result)
    return _is_same(knows.known.close(target, baseline)) or knows.regions.mean_the_same(target, baseline)


def _reads(flow: DataFlow, last: Value) -> Iterator[tuple[Call, str]]:
    """Yield the aten calls, and the slot, that were given what a place held before it was left."""
    for value in flow.earlier(last):
        yield from ((call, slot) for call, slot in value.consumers if call.kind == "aten")


def _writes(call: Call, last: Value) -> bool:
    """Tell whether a call writes at the place of a value."""
    return any(value.record.place == last.record.place for _, value in call.written_values())


def _lies_in(value: Value, known: Iterable[Value]) -> bool:
    """Tell whether memory that was written in part was compared as a whole, as it was left after that.

    A queue whose oldest rows are overwritten is one that is put together anew of those rows and the others.
    """
    wholes = (v for v in known if v.storage == value.storage and v.version >= value.version)
    return any(whole.id != value.id and covers(whole, value) for whole in wholes)


def _is_same(close: Closeness) -> bool:
    return close.bitwise or has_equal_statistics(close)


def _alike(one: Value, other: Value) -> bool:
    return (one.dtype_name, one.shape) == (other.dtype_name, other.shape)


def _by_optimizer(value: Value) -> bool:
    return value.producer is not None and value.producer[0].phase == "optimizer"
