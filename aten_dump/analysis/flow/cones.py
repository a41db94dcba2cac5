"""The calls behind some values, walked back to values that have a counterpart; of both sides, to the same start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from ...errors import FormatError, MissingDataError, ReplayError
from ..rerun.list_ops import item_of
from ..rerun.rounding import Rounding
from ..rerun.run_op import find_op
from ..rerun.run_region import Piece
from ..rerun.shared_memory import moment_of
from .counterparts import Counterparts, Side
from .data_flow import DataFlow, written_parts
from .flat_memory import parts_of_call
from .same_view import covers

MOST_CALLS: Final = 400  # that a cone is walked back
_MOST_WIDENED: Final = 60  # calls with a counterpart that may be added so that both cones start alike
_FURTHER: Final = (8, 32)  # calls, one behind the other, that are added behind the common start
_CAST: Final = "aten::_to_copy"


@dataclass(frozen=True, slots=True)
class Cone:
    """The calls behind some values, in execution order, and the values that they start from."""

    values: tuple[Value, ...]
    pieces: tuple[Piece, ...]
    cut: tuple[Value, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(piece.call for piece in self.pieces)

    def rounding(self, elements: int) -> Rounding:
        """Return what rounding costs a result of so many elements: each sums up what its calls may read for it."""
        largest = max((value.numel for piece in self.pieces for _, value in piece.call.input_values()), default=1)
        return Rounding(max(1.0, largest / max(1, elements)))

    @property
    def key(self) -> tuple[object, ...]:
        """What tells cones of one recording apart."""
        pieces = tuple((piece.call.id, piece.items, tuple(piece.parts or ())) for piece in self.pieces)
        return tuple(v.id for v in self.values), pieces, tuple(v.id for v in self.cut)


class GrowingCone:
    """A cone while it grows."""

    def __init__(self, side: Side, flow: DataFlow, known: Counterparts, values: Sequence[Value]) -> None:
        self.side = side
        self.cut: dict[int, Value] = {}
        self._flow = flow
        self._known = known
        self._values = tuple(values)
        self._pieces: dict[int, tuple[Call, set[int] | None]] = {}
        self._in_parts: dict[tuple[int, int], Piece] = {}  # by id of the call and of a part of what it wrote

    def grow(self) -> None:
        self._reach(list(self._values))

    def widen(self, value: Value) -> None:
        """Go on behind a value of the cut."""
        del self.cut[value.id]
        maker = self._flow.maker(value)
        assert maker is not None
        self._reach(self._add(maker, value))

    def can_widen(self, value: Value) -> bool:
        """Tell whether a call made a value that can be run again; one that draws random numbers turns out later."""
        maker = self._flow.maker(value)
        if maker is None or maker.error is not None or maker.random_state is not None:
            return False
        try:
            find_op(maker)
        except (ReplayError, MissingDataError, FormatError):
            return False
        return True

    def casts(self) -> list[Value]:
        """Return what of the cut is a cast, or a view of one, of memory that is in the cut too."""
        moments = {moment_of(v) for v in self.cut.values() if v.storage}
        return [v for v in self.cut.values() if self.cast_from(v) in moments]

    def cast_from(self, value: Value) -> tuple[int, int] | None:
        """Return the memory that a value is a cast of, if it is one or a view of one."""
        writer = self._flow.writer(value)
        given = writer[0].input_values() if writer is not None and writer[0].op == _CAST else ()
        return moment_of(given[0][1]) if given else None

    def cone(self) -> Cone:
        pieces = tuple(
            Piece(call, None if items is None else tuple(sorted(items))) for call, items in self._pieces.values()
        )
        pieces = tuple(sorted((*pieces, *self._in_parts.values()), key=lambda piece: piece.call.id))
        return Cone(self._values, pieces, tuple(self.cut.values()))

    def _reach(self, waiting: list[Value]) -> None:
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if value.id in seen or value.id in self.cut:
                continue
            seen.add(value.id)
            known = self._known.is_known(self.side, value)
            maker = None if known else self._flow.maker(value)
            parts = {} if known else written_parts(self._flow, value)
            if maker is not None and len(self._pieces) + len(self._in_parts) <= MOST_CALLS:
                waiting += self._add(maker, value)
            elif parts:
                waiting += parts.values()
            elif maker is not None or not value.undefined:
                self.cut[value.id] = value

    def _add(self, maker: Call, value: Value) -> list[Value]:
        """Add a call that made a value; return what that depends on."""
        writer = self._flow.writer(value)
        slot = writer[1] if writer is not None and writer[0].id == maker.id else ""
        parts = parts_of_call(maker, value, writer[2]) if slot and writer is not None else None
        if parts is not None:
            return self._add_part(maker, value, parts)
        item = item_of(maker.op, slot)
        items = self._pieces[maker.id][1] if maker.id in self._pieces else set()
        given: list[Value] = []
        if items is not None and item not in items:
            self._pieces[maker.id] = maker, None if item is None else items | {item}
            given = [v for _, v in self._flow.behind(maker, slot)]
            if self._flow.is_view(maker) or writer is None:
                return [v for _, v in maker.input_values()]
        if writer is not None and maker.mutated and not covers(writer[2], value):
            given += self._flow.before(maker, value)  # of each part of that memory, whatever else was added for another
        return given

    def _add_part(self, maker: Call, value: Value, parts: dict[int, Value]) -> list[Value]:
        """Add what a call computes of one part of its long tensors; return what that depends on."""
        if (maker.id, value.id) in self._in_parts:
            return []
        self._in_parts[maker.id, value.id] = Piece(maker, None, parts)
        return [parts.get(v.id, v) for _, v in self._flow.reads(maker)]


class CommonStart:
    """The cones of both sides, grown until both start from the same, as far as that is near by."""

    def __init__(
        self,
        sides: tuple[GrowingCone, GrowingCone],
        flows: tuple[DataFlow, DataFlow],
        known: Counterparts,
        widens: dict[tuple[Side, int], bool],
    ) -> None:
        """Take both cones, which go on growing.

        Args:
            sides: the target's and the baseline's.
            flows: theirs.
            known: the counterparts that are known.
            widens: of which values it is known whether a cone may go on behind them, by side and id; it is added to.
        """
        self._sides = sides
        self._flows = flows
        self._known = known
        self._widens = widens
        self._made: dict[tuple[Side, int], tuple[bool, int]] = {}

    def as_they_are(self) -> tuple[Cone, Cone]:
        """Return the cones as far as they have grown."""
        return self._sides[0].cone(), self._sides[1].cone()

    def cones(self) -> tuple[Cone, Cone]:
        """Widen what only one side starts from: views first, as they may be of what the other starts from.

        What has no common start near by is left as it was, views aside: in a recurrent network each step leads to the
        one before.
        """
        narrow: tuple[Cone, Cone] | None = None
        for _ in range(_MOST_WIDENED):
            odd = [item for item in self._odd() if self._can_widen(*item)]
            if not odd:
                casts = self._common_casts()
                if not casts:
                    return self.as_they_are()
                for growing, value in casts:
                    growing.widen(value)
                continue
            growing, value = max(odd, key=self._when)
            if narrow is None and not self._when((growing, value))[0]:
                narrow = self.as_they_are()
            growing.widen(value)
        return narrow or self.as_they_are()

    def further_back(self) -> Iterator[tuple[Cone, Cone]]:
        """Yield the cones with calls behind the numbers that both start from as well, then with more of them."""
        grown = False
        for number in range(_FURTHER[-1]):
            common = self._numbers_in_common()
            if not common:
                break
            for growing, value in common:
                growing.widen(value)
            grown = number + 1 not in _FURTHER
            if not grown:
                yield self.cones()
        if grown:
            yield self.cones()

    def _numbers_in_common(self) -> list[tuple[GrowingCone, Value]]:
        """Return those of the numbers that both start from behind which the cones may go on."""
        able = [
            (growing, value)
            for growing in self._sides
            for value in growing.cut.values()
            if value.is_floating and self._can_widen(growing, value)
        ]
        sides: dict[tuple[Side, int], set[Side]] = {}
        for growing, value in able:
            sides.setdefault(self._known.class_of(growing.side, value), set()).add(growing.side)
        return [(growing, v) for growing, v in able if len(sides[self._known.class_of(growing.side, v)]) == 2]

    def _common_casts(self) -> list[tuple[GrowingCone, Value]]:
        """Return the casts that both start from of what one starts from too: it casts that once more."""
        classes = {self._known.class_of(growing.side, v) for growing in self._sides for v in growing.casts()}
        found = [[(g, v) for v in g.cut.values() if self._known.class_of(g.side, v) in classes] for g in self._sides]
        both = [*found[0], *found[1]]
        return both if all(found) and all(g.cast_from(v) and self._can_widen(g, v) for g, v in both) else []

    def _can_widen(self, growing: GrowingCone, value: Value) -> bool:
        key = growing.side, value.id
        if key not in self._widens:
            self._widens[key] = growing.can_widen(value)
        return self._widens[key]

    def _odd(self) -> list[tuple[GrowingCone, Value]]:
        """Return the values that only one side starts from."""
        alone = only_on_one_side(self._known, [tuple(growing.cut.values()) for growing in self._sides])
        return [(self._sides[side], value) for side, value in alone]

    def _when(self, item: tuple[GrowingCone, Value]) -> tuple[bool, int]:
        """Return whether a value of a cut is a view, and when it was made, in the target's order."""
        side, value = item[0].side, item[1]
        key = side, value.id
        if key not in self._made:
            maker = self._flows[side].maker(value)
            is_view = maker is not None and self._flows[side].is_view(maker)
            own = value if side == 0 else self._known.partner(1, value)
            made_by = None if own is None else self._flows[0].maker(own)
            self._made[key] = is_view, -1 if made_by is None else made_by.id
        return self._made[key]


def only_on_one_side(known: Counterparts, cuts: Sequence[Sequence[Value]]) -> list[tuple[Side, Value]]:
    """Return what only one side starts from, other views of what both start from aside."""
    classes = [{known.class_of(side, v) for v in cut} for side, cut in enumerate(cuts)]  # type: ignore[arg-type]
    found: list[tuple[Side, Value]] = []
    for side in (0, 1):
        common = {v.id: v for v in cuts[side] if known.class_of(side, v) in classes[1 - side]}
        seen = {moment_of(v): v for v in common.values() if v.storage and not v.composed}
        for value in cuts[side]:
            made = seen.get(moment_of(value))
            if value.id not in common and (made is None or value.composed or not covers(made, value)):
                found.append((side, value))
    return found
