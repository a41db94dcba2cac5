"""Finds values of one side that are parts of the other side's, and so have their counterpart there.

Theory of operation
    Both sides are evaluated again, and each value without a counterpart of its own size is looked for among the blocks
    of the other side's values, in each of a few ways to view both (`_WAYS`). If it is found, the other side has its
    number from then on. The side of the parts has the number of the whole if the parts cover it (micro-batches, a
    prefill and its decoded positions), or if the whole is an output of which that side returns a part (one row of a
    batch, the last positions).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import torch

from ...dump import Value
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..pairing.call_keys import ProgramPlace, place_of
from ..signatures.signature import Signature, sign
from .blocks import Block, Blocks, Covered, Rows, can_be_block, dimensions_of
from .relaid import Relaid, RelaidValues

_MOST_NOTES: Final = 3

Sides = tuple[Evaluation, Evaluation]
Shape = tuple[int, ...]
View = Callable[[torch.Tensor], torch.Tensor]
Piece = tuple[int, Block]  # id of a part, or of what holds it, and where it lies
InRows = tuple[set[int], set[int]]


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2) if tensor.dim() > 1 else tensor


def _squeezed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.squeeze()


def _item(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.squeeze().unsqueeze(0)


def _turned_item(tensor: torch.Tensor) -> torch.Tensor:
    return _turned(tensor.squeeze()).unsqueeze(0)


def _one_of_equal(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1] if tensor.dim() else tensor


@lru_cache(maxsize=1 << 14)
def _shape(view: View, shape: Shape) -> Shape:
    return tuple(view(torch.empty(shape, device="meta")).shape)


@dataclass(frozen=True, slots=True)
class _Way:
    """How to view a part and its whole, so that the part is a block of the whole.

    Attributes:
        part: how to view the part. Rows can be taken from what is viewed along any dimension but the last.
        whole: how to view the whole.
        dim: the dimension of what is viewed along which the block lies, from the first or from the last; None if it
            may be any, or several.
    """

    part: View
    whole: View
    dim: int | None = None

    def fits(self, part: Shape, whole: Shape) -> bool:
        """Return True if tensors of these shapes, as they are viewed, may be a part and its whole."""
        if not self.may_be_whole(whole):
            return False
        smaller = dimensions_of(part, whole)
        return bool(smaller) if self.dim is None else len(smaller) == 1 and self.is_along(smaller[0], len(part))

    def may_be_whole(self, shape: Shape) -> bool:
        """Return True if a tensor of a shape, as it is viewed, may hold parts: what is equal for all is held once."""
        return self.part is not _one_of_equal or shape[:1] == (1,)

    def is_along(self, dim: int, dims: int) -> bool:
        """Return True if blocks may lie along a dimension of what is viewed, of so many."""
        return self.dim in (None, dim, dim - dims)

    def place(self, seen: Block, whole: Shape) -> Block:
        """Return where in the whole a block lies that was seen in its view."""
        if self.whole is _turned:
            return replace(seen, dim=len(whole) - 1)
        if self.whole is _squeezed:
            first = next(dim for dim, size in enumerate(whole) if size > 1)
            return replace(seen, dim=first, is_turned=self.part is _turned_item)
        return seen


_WAYS: Final = (
    _Way(_as_it_is, _as_it_is),
    _Way(_turned, _turned, dim=-2),  # along the last dimension
    _Way(_item, _squeezed, dim=0),  # dimensions of 1 are ignored
    _Way(_turned_item, _squeezed, dim=0),
    _Way(_one_of_equal, _as_it_is),  # a table that one side makes for each sample, the other side once
)
_VIEWS: Final = tuple(dict.fromkeys(view for way in _WAYS for view in (way.part, way.whole)))


class _Covering(NamedTuple):
    """A part of a value, and where it lies there."""

    part: int
    block: Block
    way: _Way
    seen: Block  # the block in the view of the value


def may_be_in_parts(
    ends: tuple[Sequence[End], Sequence[End]], sources: tuple[Sequence[Value], Sequence[Value]]
) -> bool:
    """Return True if losses, outputs or odd sources suggest that one side does in parts what the other does at once."""
    losses = [sum(end.kind == "loss" for end in side) for side in ends]
    if losses[0] != losses[1]:
        return True
    outputs = [[tuple(end.value.shape) for end in side if end.kind == "output"] for side in ends]
    given = [[tuple(value.shape) for value in side] for side in sources]
    return any(_is_part(one, other) for ours, theirs in (outputs, given) for one in set(ours) for other in set(theirs))


def are_of_other_shapes(sides: Sides) -> bool:
    """Return True if the shapes of both sides' values differ at one line, or for the first unpaired values of an op."""
    made: list[dict[ProgramPlace, set[tuple[int, ...]]]] = []
    first: list[dict[str, tuple[int, ...]]] = []
    for side, other in zip(sides, sides[::-1], strict=True):
        made.append(defaultdict(set))
        first.append({})
        for call in side.flow.calls():
            for _, value in side.flow.results(call)[:1]:
                made[-1][place_of(call)].add(tuple(value.shape))
                if side.numbers.get(value.id) not in other.holders:
                    first[-1].setdefault(call.op, tuple(value.shape))
    return any(made[0][place] != made[1][place] for place in made[0].keys() & made[1].keys()) or any(
        _is_part(first[0][op], first[1][op]) for op in first[0].keys() & first[1].keys()
    )


def _has_equal_samples(tensor: torch.Tensor) -> bool:
    """Return True if there are several samples, [samples, ...], of floats that are all the same, as in a table."""
    is_several = tensor.dim() > 2 and len(tensor) > 1 and tensor.is_floating_point()
    return is_several and bool((tensor[1:] == tensor[:1]).all()) and bool(tensor.any())


def _is_part(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return bool(dimensions_of(one, other) or dimensions_of(other, one))


class PartsFound:
    """Finds the parts, and lets both sides have their numbers.

    It has more than twenty methods, because what was seen of each value is asked for in many ways.
    """

    def __init__(self, sides: Sides, ends: tuple[Sequence[End], Sequence[End]], relaid: Sequence[Relaid] = ()) -> None:
        """Take both sides, whose ends differ, and their sources with elements in other places."""
        self.relaid = RelaidValues(sides, relaid)
        self._sides = sides
        self._ends = ends
        self._rows: tuple[dict[View, dict[int, Rows]], ...] = tuple({view: {} for view in _VIEWS} for _ in sides)
        self._wholes: tuple[set[int], set[int]] = (set(), set())  # numbers of those that the other side has
        self._views: dict[tuple[int, Shape], tuple[frozenset[View], bool]] = {}
        self._odd_shapes = self._shapes_of_odd(0), self._shapes_of_odd(1)
        self._own = tuple({end.value.id for end in side} for side in ends)
        self._said: list[str] = []  # which part each output is
        self._repeated: list[tuple[int, Value, int]] = []  # with the number of what is the same for all samples
        self.covered: list[Covered] = []
        self.places: tuple[dict[int, list[Piece]], dict[int, list[Piece]]] = ({}, {})  # of either side's parts, by id

    def watch(self, side: int, value: Value, tensor: torch.Tensor) -> None:
        """Look at a value of a side that is evaluated again."""
        self.relaid.watch(side, value, tensor)
        is_end, known = value.id in self._own[side], self._rows[side]
        is_number = tensor.numel() == 1 and is_end and tensor.is_floating_point()
        if value.id in known[_as_it_is] or not (is_number or can_be_block(tensor)):
            return
        views, may_hold = self._views_of(side, tuple(tensor.shape))
        if not (self._is_odd(side, value) or (may_hold and self._is_whole(side, value))):
            return
        if not is_number:
            known[_as_it_is][value.id] = Rows(tensor)
        is_repeated = not is_end and _has_equal_samples(tensor)
        if is_repeated:
            number = self._sides[side].numbering.find(sign(tensor[:1]))
            if number is not None and self._sides[1 - side].holders.get(number):
                self._repeated.append((side, value, number))
        for view in views if tensor.is_floating_point() else ():
            if view is _one_of_equal and not is_repeated:
                continue
            seen = view(tensor)
            if seen.dim() > 1 or is_end:  # single numbers that are no ends are often equal by chance
                known[view][value.id] = Rows(seen)

    def _views_of(self, side: int, shape: Shape) -> tuple[frozenset[View], bool]:
        """Return how to view values of a shape besides as they are, and if they may hold parts as they are.

        Views are kept only of shapes for which the other side has unpaired values that fit.
        """
        if (side, shape) not in self._views:
            found, others = set[View](), self._odd_shapes[1 - side]
            for way in _WAYS[1:]:
                own = _shape(way.part, shape), _shape(way.whole, shape)
                if any(way.fits(own[0], _shape(way.whole, other)) for other in others):
                    found.add(way.part)
                if any(way.fits(_shape(way.part, other), own[1]) for other in others):
                    found.add(way.whole)
            may_hold = any(_WAYS[0].fits(other, shape) for other in others)
            self._views[side, shape] = frozenset(found), may_hold
        return self._views[side, shape]

    def _shapes_of_odd(self, side: int) -> set[tuple[int, ...]]:
        """Return the shapes of the values without a counterpart."""
        evaluation, others = self._sides[side], self._sides[1 - side].holders
        rank = evaluation.flow.rank
        odd = (id for id, number in evaluation.numbers.items() if number not in others)
        return {tuple(rank.value_by_id(id).shape) for id in odd}

    def _is_whole(self, side: int, value: Value) -> bool:
        """Return True if a value may hold parts, even if the other side has it as a whole; once for each number.

        One side may assemble a cache from parts that the other side makes at once. Of what exists before the step (a
        table) parts are chosen, and may be the wrong ones.
        """
        number = self._sides[side].numbers.get(value.id)
        if self._sides[side].flow.writer(value) is None or number is None or number in self._wholes[side]:
            return False
        self._wholes[side].add(number)
        return True

    def _is_odd(self, side: int, value: Value) -> bool:
        known = self._sides[side].signatures.get(value.id)
        if value.id in self._own[side] or (known is not None and known.noise > known.norm):
            return True  # pure rounding error may have any number of its size
        numbers = numbers_of(self._sides[side], value)
        return bool(numbers) and not any(number in self._sides[1 - side].holders for number in numbers)

    def meet(self) -> bool:
        """Let both sides have the numbers of the parts found; return True if there are any."""
        covered: tuple[dict[int, list[_Covering]], ...] = (defaultdict(list), defaultdict(list))
        for way in _WAYS:
            self._look(way, covered)
        parts = [(side, self._value(side, id)) for side in (0, 1) for id in self.places[side]]
        for side, value in parts:
            self._let_have(1 - side, numbers_of(self._sides[side], value))
        for side in (0, 1):
            for id, seen in covered[side].items():
                whole = self._value(side, id)
                is_covered = covers([one.block for one in seen]) or any(
                    self._rows[side][one.way.whole][id].is_padded(one.seen)
                    for one in seen  # as rows added to a table are
                )
                if is_covered or self._is_output(side, whole):
                    self._let_have(1 - side, numbers_of(self._sides[side], whole))
                if is_covered:
                    pieces = tuple((self._value(1 - side, one.part), one.block) for one in seen)
                    self.covered.append(Covered(side, whole, pieces))
        for side, value, number in self._repeated:
            self._let_have(1 - side, numbers_of(self._sides[side], value))
            self._let_have(side, [number])
        for one in self.relaid.met.values():
            self._let_have(1 - one.side, numbers_of(self._sides[one.side], one.whole))
            for piece, _ in one.pieces:
                self._let_have(one.side, numbers_of(self._sides[1 - one.side], piece))
            self.covered.append(one)
        return bool(parts or self._repeated or self.relaid.met)

    def _look(self, way: _Way, covered: Sequence[dict[int, list[_Covering]]]) -> None:
        """Look for parts in one way, and add each to what it covers a part of."""
        rows = [
            {id: one for id, one in self._rows[side][way.whole].items() if way.may_be_whole(one.shape)}
            for side in (0, 1)
        ]
        wholes = Blocks(rows[0]), Blocks(rows[1])
        for side in (0, 1):
            for id, part in self._rows[side][way.part].items():
                if self._sides[side].numbers.get(id) in self._wholes[side] or self._is_unknown(side, id):
                    continue
                known, noise = self.places[side].get(id, []), self._noise(side, id)
                found = wholes[1 - side].find(part, noise)
                if not found and way.dim is None:
                    found = wholes[1 - side].find_smaller(part, noise)
                pieces: list[Piece] = []
                for held, seen in found:
                    if way.is_along(seen.dim, len(part.shape)) and all(held != other for other, _ in known):
                        pieces.append((held, way.place(seen, self._value(1 - side, held).shape)))
                        covered[1 - side][held].append(_Covering(id, pieces[-1][1], way, seen))
                if pieces:
                    self.places[side][id] = [*known, *pieces]
                if pieces and not known:
                    self._note(side, self._value(side, id), pieces)

    def let_wholes_meet(self, pairs: Sequence[Pair]) -> None:
        """Let a side have the other side's value at the same place if it makes a part of it, as with less padding.

        This serves only the search for the cause: the rest of the whole was not compared, and may lead to an end that
        differs. If a place occurs more often on one side, that side makes several parts, and one is not enough.
        """
        counts = [Counter(place_of(call) for call in side.flow.calls()) for side in self._sides]
        for pair in pairs:
            calls = pair.target, pair.baseline
            if counts[0][place_of(calls[0])] != counts[1][place_of(calls[1])]:
                continue
            made = [dict(call.result_values()) for call in calls]
            for slot in (one for one in made[0] if one in made[1]):
                for side in (0, 1):
                    part, whole = made[side][slot], made[1 - side][slot]
                    if any(id == whole.id for id, _ in self.places[side].get(part.id, ())):
                        self._let_have(side, numbers_of(self._sides[1 - side], whole))

    @cached_property
    def in_rows(self) -> InRows:
        """The numbers of each side's values whose rows all lie in one value of the other side, and of that value.

        A row extends along the last dimension. Rows of zeros are padding.
        """
        found: InRows = (set(), set())
        for side in (0, 1):
            for id in self._rows[side][_as_it_is]:
                for held in self._with_its_rows(side, id):
                    found[side].update(numbers_of(self._sides[side], self._value(side, id)))
                    found[1 - side].update(numbers_of(self._sides[1 - side], self._value(1 - side, held)))
        return found

    def _with_its_rows(self, side: int, id: int) -> Iterator[int]:
        """Yield the ids of the other side's values that have all rows of a value, which is not a block of them."""
        rows = self._rows[side][_as_it_is].get(id)
        if rows is not None and id not in self.places[side]:
            yield from self._all_rows[1 - side].with_all_rows(rows, self._noise(side, id))

    @cached_property
    def _all_rows(self) -> tuple[Blocks, Blocks]:
        return Blocks(self._rows[0][_as_it_is]), Blocks(self._rows[1][_as_it_is])

    @cached_property
    def is_packed(self) -> bool:
        """True if a side begins with rows of the other side's sources, as with packed documents."""
        for side in (0, 1):
            flow, numbers = self._sides[side].flow, self._sides[side].numbers
            known = self._sides[1 - side].holders
            for call in flow.calls():
                made = [value for _, value in flow.results(call) if value.is_floating]
                if made and flow.reads(call) and numbers.get(made[0].id) not in known:
                    read = [numbers.get(value.id) for _, value in flow.reads(call) if value.is_floating]
                    is_first = all(known.get(number or 0) for number in read)  # the other side has it as a whole
                    if is_first and any(True for _ in self._with_its_rows(side, made[0].id)):
                        return True
                    break
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on which parts of the other side's outputs one side's outputs are."""
        more = len(self._said) - _MOST_NOTES
        rest = (f"{more} more outputs are parts of the other side's",) if more > 0 else ()
        return (*self._said[:_MOST_NOTES], *rest)

    def _value(self, side: int, id: int) -> Value:
        return self._sides[side].flow.rank.value_by_id(id)

    def _noise(self, side: int, number: int) -> float:
        """Return how far rounding may move a value, by id."""
        return max((one.noise for one in self._signatures(side, number)), default=0.0)

    def _is_unknown(self, side: int, number: int) -> bool:
        """Return True if rounding moves so much of a value, by id, that it might be anything."""
        return any(one.is_unknown for one in self._signatures(side, number))

    def _signatures(self, side: int, number: int) -> list[Signature]:
        """Return the signatures of a value, by id, and of what its writer left."""
        evaluation = self._sides[side]
        writer = evaluation.flow.writer(self._value(side, number))
        known = (number, *(() if writer is None else (writer[2].id,)))
        return [evaluation.signatures[one] for one in known if one in evaluation.signatures]

    def _let_have(self, side: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._sides[side].holders.setdefault(number, [])

    def _is_output(self, side: int, value: Value) -> bool:
        return any(end.kind == "output" and end.value.id == value.id for end in self._ends[side])

    def _note(self, side: int, value: Value, found: Sequence[tuple[int, Block]]) -> None:
        """Note which part an output is."""
        if not self._is_output(side, value):
            return
        names = ("target", "baseline") if side == 0 else ("baseline", "target")
        end = next(end for end in self._ends[side] if end.value.id == value.id)
        more = f", and {len(found) - 1} equal places" if len(found) > 1 else ""
        self._said.append(
            f"the {names[0]} does a part of the {names[1]}'s work: its {end.name} {list(value.shape)} is "
            f"{found[0][1]}{more}"
        )


def numbers_of(evaluation: Evaluation, value: Value) -> list[int]:
    """Return the numbers of a value, and of the value that it shows in another shape."""
    found = [evaluation.numbers.get(value.id)]
    writer = evaluation.flow.writer(value)
    if writer is not None and writer[2].numel == value.numel:
        found.append(evaluation.numbers.get(writer[2].id))
    return [number for number in found if number is not None]


def covers(blocks: Sequence[Block]) -> bool:
    """Return True if blocks cover a tensor along one dimension."""
    by_dim: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        if block.within is None:
            by_dim[block.dim].append(block)
    return any(_reaches_all(sorted(some, key=lambda one: one.start)) for some in by_dim.values())


def _reaches_all(blocks: Sequence[Block]) -> bool:
    reached = 0
    for block in blocks:
        if block.start > reached:
            return False
        reached = max(reached, block.start + block.length)
    return reached == blocks[0].size
