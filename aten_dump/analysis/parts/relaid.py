"""Finds sources that hold the other side's elements in other places: permuted, transposed, merged.

Theory of operation
    A port may store weights in another layout: heads permuted for its rotary positions, `[in, out]` for `[out, in]`,
    queries, keys and values in one tensor. The sorted elements of two such sources are equal, and sorting both shows
    where each element lies. What has the same layout (a gradient, a moment of the optimizer, the weight after the step)
    is then compared with the other side's element by element.
    Intermediate values, such as queries of permuted heads, have their elements in other places too, which are unknown.
    In the search for a cause they count as the other side's if their sorted elements are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from ...dump import Value
from ..evaluation.evaluation import Evaluation
from ..evaluation.memory import UNREADABLE
from ..flow.data_flow import DataFlow
from ..rerun.start_tensors import start_tensors
from ..signatures.numbering import Numbering
from ..signatures.signature import Signature, sign
from .blocks import Covered

_MOST_ELEMENTS: Final = 1 << 26
_SAME: Final = 1e-9  # relative; for sums in another order


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where each element of a tensor lies in another one, in row-major order.

    Attributes:
        indices: i64, of the shape of the tensor.
    """

    indices: torch.Tensor

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """Read the tensor from another one."""
        return whole.reshape(-1)[self.indices]

    def put(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Write the tensor to its place in another one, which is contiguous."""
        whole.view(-1)[self.indices] = part


@dataclass(frozen=True, slots=True)
class Relaid(Covered):
    """A value of one side whose elements lie in values of the other side."""

    pieces: tuple[tuple[Value, Places], ...]

    def has(self, value: Value) -> bool:
        """Return True if a source is the whole or one of the pieces."""
        return value is self.whole or any(value is one for one, _ in self.pieces)

    def is_like(self, other: Relaid) -> bool:
        """Return True if two sources have their elements in the same places."""
        pairs = zip(self.pieces, other.pieces, strict=False)
        return (
            (self.side, tuple(self.whole.shape), len(self.pieces))
            == (other.side, tuple(other.whole.shape), len(other.pieces))
            and all(torch.equal(one.indices, two.indices) for (_, one), (_, two) in pairs)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Source:
    value: Value
    total: float
    squares: float

    def contents(self) -> torch.Tensor:
        return start_tensors([self.value])[self.value.id]


def relaid_sources(flows: tuple[DataFlow, DataFlow], odd: tuple[Sequence[Value], Sequence[Value]]) -> list[Relaid]:
    """Return the weights that hold the other side's elements in other places; other places of data are a difference.

    Args:
        flows: of both sides.
        odd: sources of both sides that stand for nothing, in the order of their first reads.
    """
    weights = [_weights(flow, values) if all(odd) else [] for flow, values in zip(flows, odd, strict=True)]
    known = [[source for one in some if (source := _source(one)) is not None] for some in weights]
    taken: tuple[set[int], set[int]] = (set(), set())
    found: list[Relaid] = []
    for side in (0, 1):
        for whole in known[side]:
            for run in _runs(whole, known[1 - side], with_one=side == 0):
                ids = {one.value.id for one in run}
                if whole.value.id in taken[side] or ids & taken[1 - side]:
                    continue
                pieces = _places(whole, run)
                if pieces is not None:
                    found.append(_sharing(Relaid(side, whole.value, pieces), found))
                    taken[side].add(whole.value.id)
                    taken[1 - side].update(ids)
    return found


def _weights(flow: DataFlow, values: Sequence[Value]) -> list[Value]:
    """Return the values that are weights: they require grad, or a module reads them and is not given them."""
    given = {
        number for call in flow.rank.calls.filter(kind="module", phase="forward") for _, number in call.input_slots()
    }
    read = {value.id for call in flow.calls() if call.module for _, value in flow.reads(call)}
    return [value for value in values if value.requires_grad or value.id in read - given]


def _source(value: Value) -> _Source | None:
    if not value.is_floating or value.dtype.is_complex or not 0 < value.numel <= _MOST_ELEMENTS:
        return None
    try:
        contents = start_tensors([value])[value.id]
    except UNREADABLE:
        return None
    if contents.layout is not torch.strided:
        return None
    return _Source(value, float(contents.sum()), float(contents.square().sum()))


def _runs(whole: _Source, others: Sequence[_Source], *, with_one: bool) -> Iterator[list[_Source]]:
    """Yield runs of consecutive sources, in the order of their first reads, with the same sum as a source.

    A run of more than one has as many dimensions; a single source may have others, as a matrix for a convolution has.
    """
    if with_one:
        yield from ([one] for one in others if _have_same_sums(whole, [one]))
    alike = [one for one in others if len(one.value.shape) == len(whole.value.shape)]
    size = whole.value.numel
    for start in range(len(alike)):
        stop, count = start, 0
        while stop < len(alike) and count < size:
            count += alike[stop].value.numel
            stop += 1
        run = alike[start:stop]
        if len(run) > 1 and _have_same_sums(whole, run):
            yield run


def _have_same_sums(whole: _Source, run: Sequence[_Source]) -> bool:
    """Return True if some sources have as many elements as another one, and the same sums."""
    size = whole.value.numel
    total, squares = sum(one.total for one in run), sum(one.squares for one in run)
    allowed = _SAME * whole.squares, _SAME * (size * whole.squares) ** 0.5
    is_same = abs(squares - whole.squares) <= allowed[0] and abs(total - whole.total) <= allowed[1]
    return is_same and sum(one.value.numel for one in run) == size


def _places(whole: _Source, run: Sequence[_Source]) -> tuple[tuple[Value, Places], ...] | None:
    ordered, order = whole.contents().reshape(-1).sort(stable=True)
    theirs, their_order = torch.cat([one.contents().reshape(-1) for one in run]).sort(stable=True)
    if not torch.equal(ordered, theirs):
        return None
    places = torch.empty_like(order)
    places[their_order] = order
    parts = places.split([one.value.numel for one in run])
    return tuple((one.value, Places(part.view(one.value.shape))) for one, part in zip(run, parts, strict=True))


def _sharing(one: Relaid, others: Sequence[Relaid]) -> Relaid:
    """Return a layout that shares the indices of an equal one: all layers of a model have the same."""
    like = next((other for other in others if one.is_like(other)), None)
    if like is None:
        return one
    pairs = zip(one.pieces, like.pieces, strict=True)
    return replace(one, pieces=tuple((value, places) for (value, _), (_, places) in pairs))


class RelaidValues:
    """Finds, while both sides are evaluated again, values that have the layout of relaid sources.

    Attributes:
        met: the values of a side whose elements all lie in values of the other side, by side and value.
    """

    def __init__(self, sides: tuple[Evaluation, Evaluation], sources: Sequence[Relaid]) -> None:
        """Take both sides and their relaid sources."""
        self._sides = sides
        self._layouts: list[Relaid] = []
        for one in sources:
            if not any(one.is_like(known) for known in self._layouts):
                self._layouts.append(one)
        self._sorted: tuple[dict[int, Signature], dict[int, Signature]] = ({}, {})
        self.met: dict[tuple[int, Value], Relaid] = {}

    def watch(self, side: int, value: Value, tensor: torch.Tensor) -> None:
        """Look at a value of a side."""
        if not self._layouts or value.id in self._sorted[side] or not 1 < tensor.numel() <= _MOST_ELEMENTS:
            return
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return
        if self._sides[side].numbers.get(value.id) not in self._sides[1 - side].holders:
            self._sorted[side][value.id] = sign(tensor.detach().reshape(-1).sort().values)
        for layout in self._layouts:
            if layout.side == side and tensor.shape == layout.whole.shape and (side, value) not in self.met:
                pieces = self._pieces(side, value, tensor, layout)
                if pieces:
                    self.met[side, value] = Relaid(side, value, pieces)

    def _pieces(
        self, side: int, value: Value, tensor: torch.Tensor, layout: Relaid
    ) -> tuple[tuple[Value, Places], ...]:
        """Return the other side's values that contain all elements of one; none if some elements are in none."""
        known = self._sides[side].signatures.get(value.id)
        noise = 0.0 if known is None else known.noise
        found = []
        for _, places in layout.pieces:
            signature = sign(places.take(tensor))._replace(noise=noise)
            number = self._sides[side].numbering.find(signature)
            held = self._sides[1 - side].holders.get(number, ()) if number is not None else ()
            if not held:
                return ()
            found.append((self._sides[1 - side].flow.rank.value_by_id(held[0]), places))
        return tuple(found)

    @property
    def in_other_places(self) -> tuple[set[int], set[int]]:
        """The numbers of each side's values whose elements all lie in one value of the other side."""
        numbering = Numbering()
        groups = [{id: numbering.number(one) for id, one in some.items()} for some in self._sorted]
        both = set(groups[0].values()) & set(groups[1].values())
        target, baseline = (
            {number for id, group in some.items() if group in both and (number := side.numbers.get(id)) is not None}
            for side, some in zip(self._sides, groups, strict=True)
        )
        return target, baseline
