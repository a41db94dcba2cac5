"""Finds the cause of a difference between layouts: a rank that does something else, or a missing sum over ranks.

Theory of operation
    The ranks of a side run one program. Starting from the gradient of a rank that is wrong, and that of a rank that is
    right, both chains of calls are walked back in parallel, through views and copies. Where the ops of the calls
    differ, one rank does what the other does not. Behind a transfer in which both took part, both have the same.

    What the ranks of a side read first at one place is one tensor. If most ranks hold their parts of a tensor of the
    other side, the others read wrong contents. No call made these, so they are the cause.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from ...dump import Call, Value
from ...store.op_names import WAIT_TENSOR, is_collective
from ..cone.cone import Cone, cone_of
from ..ends.ends import AS_LEFT, End, number_of
from ..evaluation.numbers_in_python import NearCall
from ..evidence.evidence_rows import Pair
from ..explanation.both_sides import Evaluated
from ..explanation.causes import Cause, Causes
from ..explanation.other_layout import FORWARD
from ..flow.data_flow import DataFlow
from .carried import by_role
from .groups import Group, near, right_ranks
from .joined_rank import JoinedRank, own_name
from .side import Side

_COPIES: Final = frozenset({"aten::copy_", "aten::clone", "aten::_to_copy", WAIT_TENSOR})
Made = tuple[Call, str]  # with the slot of its result
_FAR: Final = 8  # most calls that only one rank has
_MOST: Final = 64  # most pairs of calls to look at: calls that reduce gradients are near

_THERE: Final = ", in the baseline"


@dataclass(slots=True)
class WorldFound:
    """What is known of the ranks of both sides apart from their values.

    Attributes:
        terms: numbers of values that each side must sum over ranks.
        sums: numbers of gradients that are such a sum, while the other side has the mean.
        foreign: a source of some ranks that differs from the other side's.
    """

    terms: tuple[Container[int], Container[int]] = ((), ())
    sums: tuple[Container[int], Container[int]] = ((), ())
    foreign: Foreign | None = None


class WorldCauses(Causes):
    """Finds the cause of ends that differ between all ranks of both sides."""

    tells_floats_apart = False  # a rank makes terms of sums, which are known by their numbers

    def __init__(self, found: Evaluated, pairs: Sequence[Pair], more: WorldFound) -> None:
        """Prepare to look."""
        super().__init__(found.sides, found.sources, found.ends, pairs)
        self._terms = more.terms
        self._sums = more.sums
        self._foreign = more.foreign

    def find(self, odd: tuple[Sequence[End], Sequence[End]], near: Sequence[NearCall] = ()) -> Cause:
        if self._foreign is not None and (cause := self._reading(self._foreign)) is not None:
            return cause
        if not any(end.kind in FORWARD for end in (*odd[0], *odd[1])) and (cause := self._beside_a_peer(odd)):
            return cause
        for side in (0, 1):
            for end in odd[side]:
                number = number_of(self._sides[side], end.value)
                if end.kind != "gradient" or number is None:
                    continue
                if number in self._terms[side]:
                    return self._unreduced(side, end)
                if number in self._sums[side] and (cause := self._undivided(side, end)) is not None:
                    return cause
        return super().find(odd, near)

    def _reading(self, foreign: Foreign) -> Cause | None:
        """Return the cause if a rank reads other contents than its part of what the other side reads."""
        side, value = foreign.side, foreign.value
        readers = (call for call in self._sides[side].flow.calls() if self._takes(side, call, value))
        named = next(readers, None)
        if named is None:
            return None
        slot = next(s for s, v in self._sides[side].flow.reads(named) if v.storage == value.storage)
        text = self._other_contents(value, None)
        text += "" if foreign.twin is None else f"; rank {foreign.twin} has the same"
        return self._on_a_side(side, Cause("source", named, None, text, "", slot))

    def _beside_a_peer(self, odd: tuple[Sequence[End], Sequence[End]]) -> Cause | None:
        """Return the cause if a rank handles a gradient in another way than a rank whose gradient is right."""
        for side in (0, 1):
            wrong = {end.value.id for end in odd[side]}
            right = {own_name(end.name): end for end in self._ends[side] if end.value.id not in wrong}
            for end in odd[side]:
                peer = right.get(own_name(end.name)) if end.kind == "gradient" else None
                found = None if peer is None else parted(self._sides[side].flow, end.value, peer.value)
                if found is not None:
                    text = f"{end.name.removesuffix(AS_LEFT)} is another tensor on this rank: {found.text}"
                    return self._on_a_side(side, Cause("gradient", found.call, None, text))
        return None

    @staticmethod
    def _on_a_side(side: int, cause: Cause) -> Cause:
        """Return a cause that was found on a side, as one of the target's or the baseline's."""
        return cause if side == 0 else replace(cause, target=None, baseline=cause.target, text=f"{cause.text}{_THERE}")

    def _unreduced(self, side: int, end: End) -> Cause:
        """Return the cause if a rank continues with only its own gradient."""
        flow = self._sides[side].flow
        readers = [call for call in flow.calls() if self._takes(side, call, end.value)]
        made = [call for call in (flow.maker(end.value),) if call is not None]
        named = next(iter([*(call for call in readers if call.phase == "optimizer"), *readers, *made, *flow.calls()]))
        name = end.name.removesuffix(AS_LEFT)
        text = f"{name} is this rank's own gradient, a term of the sum over ranks, which nothing has reduced"
        return self._on_a_side(side, Cause("gradient", named, None, text))

    def _undivided(self, side: int, end: End) -> Cause | None:
        """Return the cause if ranks sum their gradients, and the other side has the mean."""
        writer = self._sides[side].flow.writer(end.value)
        if writer is None:
            return None
        name = end.name.removesuffix(AS_LEFT)
        text = f"{name} is the sum over ranks, {'the baseline has' if side == 0 else 'the target has'} the mean"
        return self._on_a_side(side, Cause("gradient", writer[0], None, text))

    def _takes(self, side: int, call: Call, value: Value) -> bool:
        flow = self._sides[side].flow
        read = () if flow.is_view(call) else flow.reads(call)
        return any((v.storage, v.version) == (value.storage, value.version) for _, v in read if v.storage)

    def _behind_the_cut(self, cones: tuple[Cone, Cone], first: Call | None, other: Call | None) -> Cause:
        """Return the cause; a rank may read its part of a source by another op than the other side the whole."""
        asked = self._with_other_arguments(cones[0].first, cones[1].first)
        if asked is not None:
            return self._same_op(*asked)
        for side, call in ((0, first), (1, other)):
            read = () if call is None else self._sides[side].flow.reads(call)
            odd = [(slot, value) for slot, value in read if self._candidates.is_odd_source(side, value)]
            if odd and call is not None and (side == 0 or first is None):
                slot, value = odd[0]
                text = self._other_contents(value, None)
                same = first is not None and other is not None and first.op == other.op
                return Cause("source", first if side == 0 else None, other if side or same else None, text, "", slot)
        return self._with_a_term(cones) or super()._behind_the_cut(cones, first, other)

    def _with_a_term(self, cones: tuple[Cone, Cone]) -> Cause | None:
        """Return the cause if the first call that computes uses a term of a sum over ranks as the sum."""
        for side, cone in enumerate(cones):
            evaluation, known = self._sides[side], self._sides[1 - side].holders
            flow = evaluation.flow
            call = next((call for _, call in sorted(cone.calls.items()) if not flow.is_view(call)), None)
            read = [] if call is None or is_collective(call.op) else flow.reads(call)
            numbers = [evaluation.numbers.get(value.id, 0) for _, value in read]
            slot = next((s for (s, _), n in zip(read, numbers, strict=True) if n in self._terms[side]), None)
            if call is not None and slot is not None and all(number in known for number in numbers):
                text = f"{slot} is a term of the sum over ranks, which nothing has reduced"
                return self._on_a_side(side, Cause("rewired", call, None, text, "", slot))
        return None


@dataclass(frozen=True, slots=True)
class Parted:
    """The place where two ranks diverge: the call of the wrong rank, and a sentence."""

    call: Call
    text: str


def parted(flow: DataFlow, wrong: Value, right: Value) -> Parted | None:
    """Return where the chains behind the values of two ranks diverge; None if they do not."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    ranks = rank.rank_of_value(wrong.id), rank.rank_of_value(right.id)
    waiting = [(wrong, right)]
    for _ in range(_MOST):
        if not waiting:
            break
        one, other = waiting.pop(0)
        ours, theirs = _writer(flow, one), _writer(flow, other)
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None or ours[0].op != theirs[0].op:
            return _reported(ranks, flow, ours, theirs)
        if ours[0].id not in _met(flow, theirs[0]):
            behind = flow.behind(*ours), flow.behind(*theirs)
            waiting += [(a, b) for (_, a), (_, b) in zip(*behind, strict=False)]
    return None


def _reported(ranks: tuple[int, int], flow: DataFlow, ours: Made | None, theirs: Made | None) -> Parted | None:
    """Return what only one rank does, for two calls of different ops."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    peer = f"rank {ranks[1]}"
    brought = _transfer(flow, theirs, ours)
    own = next((id for id in brought if rank.number_of(id) == ranks[0]), None)
    if own is not None and own not in _transfer(flow, ours, None):
        text = f"{peer} goes on with what it brings, this rank with its own, a term of the sum over ranks"
        return Parted(rank.call(own), f"{text}, which nothing has reduced")
    if ours is None or theirs is None:
        return None
    more = [_steps(flow, one, other[0].op) for one, other in ((ours, theirs), (theirs, ours))]
    if more[0] and not 0 < more[1] < more[0]:
        return Parted(ours[0], f"{peer} has no such call there: {ours[0].op}")
    if more[1]:
        line = theirs[0].where or theirs[0].name
        return Parted(ours[0], f"{peer} goes on with {theirs[0].op} of what it makes, this rank does not ({line})")
    return Parted(ours[0], f"it computes {ours[0].op}, {peer} {theirs[0].op}")


def _near(flow: DataFlow, made: Made) -> Iterator[Call]:
    """Yield a call and those shortly before it, up to transfers."""
    waiting, count = [made], 0
    while waiting and count < _FAR:
        call, slot = waiting.pop(0)
        count += 1
        yield call
        if not _met(flow, call):
            makers = (_writer(flow, value) for _, value in flow.behind(call, slot))
            waiting += [maker for maker in makers if maker is not None]


def _steps(flow: DataFlow, made: Made, op: str) -> int:
    """Return how many calls before a call there is one of an op; 0 if there is none."""
    return next((steps for steps, call in enumerate(_near(flow, made)) if call.op == op), 0)


def _transfer(flow: DataFlow, made: Made | None, until: Made | None) -> tuple[int, ...]:
    """Return the calls of the transfer shortly before a call, unless a call of the op of `until` is nearer."""
    for call in () if made is None else _near(flow, made):
        if until is not None and call.op == until[0].op:
            break
        if _met(flow, call):
            return _met(flow, call)
    return ()


def _met(flow: DataFlow, call: Call) -> tuple[int, ...]:
    """Return the calls of one transfer, this one among them."""
    rank = flow.rank
    assert isinstance(rank, JoinedRank)
    return rank.meetings.get(call.id, ())


def _writer(flow: DataFlow, value: Value) -> Made | None:
    """Return the call that computed a value, with the slot, looking through views and moves."""
    for _ in range(_MOST):
        maker = flow.maker(value)
        if maker is not None and flow.is_view(maker):
            value = flow.reads(maker)[0][1]
            continue
        writer = flow.writer(value)
        if writer is None:
            return None
        behind = flow.behind(writer[0], writer[1])
        if writer[0].op not in _COPIES or not behind:
            return writer[0], writer[1]
        value = behind[-1][1]
    return None


@dataclass(frozen=True, slots=True)
class Foreign:
    """A source that differs from its rank's part of the other side's tensor."""

    side: int
    value: Value
    contents: Tensor
    twin: int | None  # the rank that holds the same contents as its own part


def foreign_source(
    sides: tuple[Side, Side], contents: Mapping[int, Tensor], odd: tuple[Sequence[End], Sequence[End]]
) -> Foreign | None:
    """Return the first source of some ends that only some ranks hold as the other side does.

    Args:
        sides: evaluated.
        contents: of the baseline's sources, by id, that were not taken as recorded.
        odd: ends that differ.
    """
    for side in (0, 1):
        if len(sides[side].rank.ranks) < 2 or not odd[side]:
            continue
        cone = cone_of(sides[side].evaluation, (), [end.value for end in odd[side]])
        groups = [one for one in by_role(sides[side], set(cone.sources)).values() if len(one.now) > 1]
        groups = [group for group in groups if not _is_replicated(group, sides[side], sides[1 - side])]
        others = list(by_role(sides[1 - side], set(sides[1 - side].evaluation.sources)).values()) if groups else []
        for one, is_baseline in ((groups, side), (others, not side)):
            _take(one, contents if is_baseline else {})
        for foreign in (one for group in groups for one in _odd_ones(side, group, others)):
            if foreign.twin is None and _is_whole(foreign.value, sides[side], sides[1 - side]):
                continue  # another source: the labels of the last stage, beside the words of the first
            if sides[side].depends_on(foreign.value, foreign.contents, contents if side else {}, odd[side]):
                return foreign
    return None


def _take(groups: Sequence[Group], contents: Mapping[int, Tensor]) -> None:
    for group in groups:
        for rank, value in group.values.items():
            if value.id in contents:
                group.now[rank] = contents[value.id]


def _is_replicated(group: Group, side: Side, other: Side) -> bool:
    """Return True if all ranks hold exactly the same, and the other side too."""
    numbers = {side.evaluation.numbers.get(value.id, 0) for value in group.values.values()}
    return len(numbers) == 1 and _is_whole(next(iter(group.values.values())), side, other)  # a share has no holders


def _is_whole(value: Value, side: Side, other: Side) -> bool:
    """Return True if the other side has a value as one of its own."""
    return bool(other.evaluation.holders.get(side.evaluation.numbers.get(value.id, 0)))


def _odd_ones(side: int, group: Group, others: Sequence[Group]) -> Iterator[Foreign]:
    right = max((right_ranks(group, other) for other in others), key=len, default=[])
    if not right:
        return
    for rank, value in group.values.items():
        if rank not in right:
            own = group.now[rank]
            yield Foreign(side, value, own, next((one for one in right if near(own, group.now[one], 0.0)), None))
