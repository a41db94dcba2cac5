"""The calls behind some values, walked back to values that have a counterpart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from ...errors import FormatError, MissingDataError, ReplayError
from ..rerun.list_ops import item_of
from ..rerun.run_op import find_op
from ..rerun.run_region import Piece
from ..rerun.shared_memory import moment_of
from .counterparts import Counterparts, Side
from .data_flow import DataFlow, written_parts
from .flat_memory import parts_of_call
from .same_view import covers

MOST_CALLS: Final = 400  # that a cone is walked back
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
        known = self._pieces.get(maker.id)
        if known is not None and (known[1] is None or item in known[1]):
            return []
        if item is None:
            self._pieces[maker.id] = maker, None
        else:
            self._pieces[maker.id] = maker, ((known[1] if known else None) or set()) | {item}
        given = [v for _, v in self._flow.behind(maker, slot)]
        if self._flow.is_view(maker) or writer is None:
            given = [v for _, v in maker.input_values()]
        elif maker.mutated and not covers(writer[2], value):
            given += self._flow.before(maker, value)
        return given

    def _add_part(self, maker: Call, value: Value, parts: dict[int, Value]) -> list[Value]:
        """Add what a call computes of one part of its long tensors; return what that depends on."""
        if (maker.id, value.id) in self._in_parts:
            return []
        self._in_parts[maker.id, value.id] = Piece(maker, None, parts)
        return [parts.get(v.id, v) for _, v in self._flow.reads(maker)]
