"""The cause of a difference between layouts: what one rank has and should not, or nothing added up over ranks."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...dump import Call, Value
from ...store.op_names import is_collective
from ..cone.cone import Cone
from ..ends.ends import AS_LEFT, End, number_of
from ..evaluation.numbers_in_python import NearCall
from ..evidence.evidence_rows import Pair
from ..explanation.both_sides import Evaluated
from ..explanation.causes import Cause, Causes
from ..explanation.other_layout import FORWARD
from .joined_rank import own_name
from .other_data import Foreign
from .peers import parted

_THERE: Final = ", in the baseline"


@dataclass(slots=True)
class WorldFound:
    """What is known of the ranks of both sides beside their values.

    Attributes:
        terms: numbers of what each side must add up over ranks.
        foreign: sources of some ranks that are not what the other side has there.
    """

    terms: tuple[Container[int], Container[int]] = ((), ())
    foreign: Sequence[Foreign] = ()


class WorldCauses(Causes):
    """Finds the cause of ends that differ between all ranks of both sides."""

    def __init__(self, found: Evaluated, pairs: Sequence[Pair], more: WorldFound) -> None:
        """Prepare to look."""
        super().__init__(found.sides, found.sources, found.ends, pairs)
        self._terms = more.terms
        self._foreign = more.foreign

    def find(self, odd: tuple[Sequence[End], Sequence[End]], near: Sequence[NearCall] = ()) -> Cause:
        for foreign in self._foreign:
            if (cause := self._reading(foreign)) is not None:
                return cause
        if not any(end.kind in FORWARD for end in (*odd[0], *odd[1])) and (cause := self._beside_a_peer(odd)):
            return cause
        for side in (0, 1):
            for end in odd[side]:
                number = number_of(self._sides[side], end.value)
                if end.kind == "gradient" and number is not None and number in self._terms[side]:
                    return self._unreduced(side, end)
        return super().find(odd, near)

    def _reading(self, foreign: Foreign) -> Cause | None:
        """Return the cause where a rank reads other contents than its part of what the other side reads."""
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
        """Return the cause where a rank does something else with a gradient than one whose gradient is right."""
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
        """Return the cause where a rank goes on with its own gradient."""
        flow = self._sides[side].flow
        readers = [call for call in flow.calls() if self._takes(side, call, end.value)]
        made = [call for call in (flow.maker(end.value),) if call is not None]
        named = next(iter([*(call for call in readers if call.phase == "optimizer"), *readers, *made, *flow.calls()]))
        name = end.name.removesuffix(AS_LEFT)
        text = f"{name} is this rank's own gradient, a term of the sum over ranks, which nothing has reduced"
        return self._on_a_side(side, Cause("gradient", named, None, text))

    def _takes(self, side: int, call: Call, value: Value) -> bool:
        flow = self._sides[side].flow
        read = () if flow.is_view(call) else flow.reads(call)
        return any((v.storage, v.version) == (value.storage, value.version) for _, v in read if v.storage)

    def _behind_the_cut(self, cones: tuple[Cone, Cone], first: Call | None, other: Call | None) -> Cause:
        """Return the cause: a rank's part of a tensor from outside may be read by another op than the whole is."""
        asked = self._with_other_arguments(cones[0].first, cones[1].first)
        if asked is not None:
            return self._same_op(*asked)
        for side, call in ((0, first), (1, other)):
            read = () if call is None else self._sides[side].flow.reads(call)
            odd = [(slot, value) for slot, value in read if self._is_odd_source(side, value)]
            if odd and call is not None and (side == 0 or first is None):
                slot, value = odd[0]
                text = self._other_contents(value, None)
                same = first is not None and other is not None and first.op == other.op
                return Cause("source", first if side == 0 else None, other if side or same else None, text, "", slot)
        return self._with_a_term(cones) or super()._behind_the_cut(cones, first, other)

    def _with_a_term(self, cones: tuple[Cone, Cone]) -> Cause | None:
        """Return the cause where the first call that computes takes a term of a sum over ranks for the sum."""
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
