"""The cause of a difference between layouts: what one rank has and should not, or nothing added up over ranks."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ...dump import Call, Value
from ..cone.cone import Cone
from ..ends.ends import AS_LEFT, End, number_of
from ..evaluation.numbers_in_python import NearCall
from ..evidence.evidence_rows import Pair
from ..explanation.both_sides import Evaluated
from ..explanation.causes import Cause, Causes
from ..explanation.left_alone import SIDES


class WorldCauses(Causes):
    """Finds the cause of ends that differ between all ranks of both sides."""

    def __init__(self, found: Evaluated, pairs: Sequence[Pair], terms: tuple[Container[int], Container[int]]) -> None:
        """Prepare to look; `terms` are numbers of what each side must add up over ranks."""
        super().__init__(found.sides, found.sources, found.ends, pairs)
        self._terms = terms

    def find(self, odd: tuple[Sequence[End], Sequence[End]], near: Sequence[NearCall] = ()) -> Cause:
        for side in (0, 1):
            for end in odd[side]:
                number = number_of(self._sides[side], end.value)
                if end.kind == "gradient" and number is not None and number in self._terms[side]:
                    return self._unreduced(side, end)
        return super().find(odd, near)

    def _unreduced(self, side: int, end: End) -> Cause:
        """Return the cause where a rank goes on with its own gradient."""
        flow = self._sides[side].flow
        readers = [call for call in flow.calls() if self._takes(side, call, end.value)]
        made = [call for call in (flow.maker(end.value),) if call is not None]
        named = next(iter([*(call for call in readers if call.phase == "optimizer"), *readers, *made, *flow.calls()]))
        name = end.name.removesuffix(AS_LEFT)
        text = f"{name} is this rank's own gradient, a term of the sum over ranks, which nothing has reduced"
        text += "" if side == 0 else f" in the {SIDES[side]}"
        return Cause("gradient", None if side else named, named if side else None, text)

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
        return super()._behind_the_cut(cones, first, other)
