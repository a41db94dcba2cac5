"""Finds values of one side that are parts of the other side's, and so have their counterpart there.

Theory of operation
    Both sides are evaluated again, and each value without a counterpart of its own size is looked for among the blocks
    of the other side's values. If it is found, the other side has its number from then on. The side of the parts has
    the number of the whole if the parts cover it (micro-batches, a prefill and its decoded positions), or if the whole
    is an output of which that side returns a part (one row of a batch, the last positions).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import torch

from ...dump import Value
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..pairing.call_keys import ProgramPlace, place_of
from .blocks import Block, Blocks, Covered, Rows, can_be_block, dimensions_of
from .relaid import Relaid, RelaidValues

_MOST_NOTES: Final = 3

Sides = tuple[Evaluation, Evaluation]
Piece = tuple[int, Block]  # id of a part, or of what holds it, and where it lies
InRows = tuple[set[int], set[int]]


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


def _is_part(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return bool(dimensions_of(one, other) or dimensions_of(other, one))


class PartsFound:
    """Finds the parts, and lets both sides have their numbers.

    It has more than twenty methods, because finding parts and giving numbers use the same rows.
    """

    def __init__(self, sides: Sides, ends: tuple[Sequence[End], Sequence[End]], relaid: Sequence[Relaid] = ()) -> None:
        """Take both sides, whose ends differ, and their sources with elements in other places."""
        self.relaid = RelaidValues(sides, relaid)
        self._sides = sides
        self._ends = ends
        self._rows: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})
        self._turned: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})  # with the last two dimensions exchanged
        self._wholes: tuple[set[int], set[int]] = (set(), set())  # numbers of those that the other side has
        self._may_hold: dict[tuple[int, tuple[int, ...]], bool] = {}  # shapes of the other side's parts
        self._like: tuple[dict[tuple[int, ...], bool], dict[tuple[int, ...], bool]] = ({}, {})
        self._items: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})  # with a leading dimension of 1
        self._in_batches: tuple[dict[tuple[int, ...], bool], dict[tuple[int, ...], bool]] = ({}, {})
        self._stackable: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})  # without dimensions of 1, as an item
        self._turned_items: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})
        self._stacks: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})  # without dimensions of one
        self._odd_shapes = self._shapes_of_odd(0), self._shapes_of_odd(1)
        self._squeezed = _squeezed(self._odd_shapes[0]), _squeezed(self._odd_shapes[1])
        self._inner = tuple({one[1:] for one in shapes if one} for shapes in self._squeezed)
        self._own = tuple({end.value.id for end in side} for side in ends)
        self._said: list[str] = []  # which part each output is
        self.covered: list[Covered] = []
        self.places: tuple[dict[int, list[Piece]], dict[int, list[Piece]]] = ({}, {})  # of either side's parts, by id

    def watch(self, side: int, value: Value, tensor: torch.Tensor) -> None:
        """Look at a value of a side that is evaluated again."""
        self.relaid.watch(side, value, tensor)
        if value.id in self._rows[side] or not can_be_block(tensor):
            if tensor.numel() == 1 and value.id in self._own[side] and tensor.is_floating_point():
                self._stackable[side].setdefault(value.id, Rows(tensor.reshape(1)))
            return
        if self._is_odd(side, value) or self._is_whole(side, value, tuple(tensor.shape)):
            self._rows[side][value.id] = Rows(tensor)
            if self._is_item(side, tensor):
                self._items[side][value.id] = Rows(tensor.unsqueeze(0))
            if tensor.dim() > 1 and tensor.is_floating_point() and self._has_like(side, tuple(tensor.shape)):
                self._turned[side][value.id] = Rows(tensor.transpose(-1, -2))
            if tensor.is_floating_point():
                self._watch_stacked(side, value, tensor.squeeze())

    def _watch_stacked(self, side: int, value: Value, tensor: torch.Tensor) -> None:
        """Look at a value that may be an item of the other side's stack, or a stack of its items.

        Single numbers are looked for only if they are ends, and only in ends: others are often equal by chance.
        """
        shape = tuple(tensor.shape)
        if shape in self._inner[1 - side]:
            self._stackable[side][value.id] = Rows(tensor.unsqueeze(0))
        if len(shape) > 1 and _turned(shape) in self._inner[1 - side]:
            self._turned_items[side][value.id] = Rows(tensor.transpose(-1, -2).unsqueeze(0))
        is_stack = bool(self._squeezed[1 - side] & {shape[1:], _turned(shape[1:])})
        if is_stack and (len(shape) > 1 or value.id in self._own[side]):
            self._stacks[side][value.id] = Rows(tensor)

    def _has_like(self, side: int, shape: tuple[int, ...]) -> bool:
        """Return True if the other side has unpaired values of this shape, apart from the last dimension."""
        if shape not in self._like[side]:
            others = (one for one in self._odd_shapes[1 - side] if one[:-1] == shape[:-1])
            self._like[side][shape] = any(one != shape for one in others)
        return self._like[side][shape]

    def _is_item(self, side: int, tensor: torch.Tensor) -> bool:
        """Return True if the other side may have a batch of which a tensor is one item, without the batch dimension."""
        shape = tuple(tensor.shape)
        if shape not in self._in_batches[side]:
            batches = (one for one in self._odd_shapes[1 - side] if len(one) == 1 + len(shape) and one[1:] == shape)
            self._in_batches[side][shape] = any(one[0] > 1 for one in batches)
        return self._in_batches[side][shape] and tensor.is_floating_point()

    def _shapes_of_odd(self, side: int) -> set[tuple[int, ...]]:
        """Return the shapes of the values without a counterpart."""
        evaluation, others = self._sides[side], self._sides[1 - side].holders
        rank = evaluation.flow.rank
        odd = (id for id, number in evaluation.numbers.items() if number not in others)
        return {tuple(rank.value_by_id(id).shape) for id in odd}

    def _is_whole(self, side: int, value: Value, shape: tuple[int, ...]) -> bool:
        """Return True if a value may hold parts, even if the other side has it as a whole; once for each number.

        One side may assemble a cache from parts that the other side makes at once. Of what exists before the step (a
        table) parts are chosen, and may be the wrong ones.
        """
        if self._sides[side].flow.writer(value) is None:
            return False
        key = side, shape
        if key not in self._may_hold:
            self._may_hold[key] = any(dimensions_of(one, shape) for one in self._odd_shapes[1 - side])
        number = self._sides[side].numbers.get(value.id) if self._may_hold[key] else None
        if number is None or number in self._wholes[side]:
            return False
        self._wholes[side].add(number)
        return True

    def _is_odd(self, side: int, value: Value) -> bool:
        known = self._sides[side].signatures.get(value.id)
        if value.id in self._own[side] or (known is not None and known.noise > known.norm):
            return True  # pure rounding error may have any number of its size
        numbers = self._numbers(side, value)
        return bool(numbers) and not any(number in self._sides[1 - side].holders for number in numbers)

    def _numbers(self, side: int, value: Value) -> list[int]:
        """Return the numbers of a value, and of the value that it shows in another shape."""
        evaluation = self._sides[side]
        found = [evaluation.numbers.get(value.id)]
        writer = evaluation.flow.writer(value)
        if writer is not None and writer[2].numel == value.numel:
            found.append(evaluation.numbers.get(writer[2].id))
        return [number for number in found if number is not None]

    def meet(self) -> bool:
        """Let both sides have the numbers of the parts found; return True if there are any."""
        covered: tuple[dict[int, list[Piece]], dict[int, list[Piece]]] = (defaultdict(list), defaultdict(list))
        parts: list[tuple[int, Value]] = []
        for side, number, found in (
            *self._blocks(self._rows, self._rows),
            *self._blocks(self._turned, self._turned, turned=True),
            *self._blocks(self._items, self._rows),
            *self._items_of_stacks(self._stackable),
            *self._items_of_stacks(self._turned_items, are_turned=True),
        ):
            parts.append((side, self._sides[side].flow.rank.value_by_id(number)))
            self._note(side, parts[-1][1], found)
            self.places[side][number] = found
            for held, block in found:
                covered[1 - side][held].append((number, block))
        for side, value in parts:
            self._let_have(1 - side, self._numbers(side, value))
        for side in (0, 1):
            for number, seen in covered[side].items():
                whole = self._sides[side].flow.rank.value_by_id(number)
                is_covered = covers([block for _, block in seen]) or self._is_all_but_padding(side, number, seen)
                if is_covered or self._is_output(side, whole):
                    self._let_have(1 - side, self._numbers(side, whole))
                if is_covered:
                    self._note_covered(side, whole, seen)
        for (side, whole), pieces in self.relaid.met.items():
            rank = self._sides[1 - side].flow.rank
            values = tuple((rank.value_by_id(part), where) for part, where in pieces)
            self._let_have(1 - side, self._numbers(side, whole))
            for part, _ in values:
                self._let_have(side, self._numbers(1 - side, part))
            self.covered.append(Covered(side, whole, values))
        return bool(parts or self.relaid.met)

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
                        self._let_have(side, self._numbers(1 - side, whole))

    @cached_property
    def in_rows(self) -> InRows:
        """The numbers of each side's values whose rows all lie in one value of the other side, and of that value.

        A row extends along the last dimension. Rows of zeros are padding.
        """
        found: InRows = (set(), set())
        for side in (0, 1):
            rank, others = self._sides[side].flow.rank, self._sides[1 - side].flow.rank
            for id in self._rows[side]:
                for held in self._with_its_rows(side, id):
                    found[side].update(self._numbers(side, rank.value_by_id(id)))
                    found[1 - side].update(self._numbers(1 - side, others.value_by_id(held)))
        return found

    def _with_its_rows(self, side: int, id: int) -> Iterator[int]:
        """Yield the ids of the other side's values that have all rows of a value, which is not a block of them."""
        rows = self._rows[side].get(id)
        if rows is not None and id not in self.places[side]:
            yield from self._all_rows[1 - side].with_all_rows(rows, self._noise(side, id))

    @cached_property
    def _all_rows(self) -> tuple[Blocks, Blocks]:
        return Blocks(self._rows[0]), Blocks(self._rows[1])

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

    def _blocks(
        self,
        parts: tuple[dict[int, Rows], dict[int, Rows]],
        wholes: tuple[dict[int, Rows], dict[int, Rows]],
        *,
        turned: bool = False,
    ) -> Iterator[tuple[int, int, list[tuple[int, Block]]]]:
        """Yield the side and id of each part, and its places in values."""
        blocks = Blocks(wholes[0]), Blocks(wholes[1])
        for side in (0, 1):
            for number, part in parts[side].items():
                if self._sides[side].numbers.get(number) in self._wholes[side]:
                    continue
                noise = self._noise(side, number)
                found = blocks[1 - side].find(part, noise) or blocks[1 - side].find_smaller(part, noise)
                if turned:
                    last = len(part.shape) - 1
                    found = [
                        (id, replace(one, dim=last)) for id, one in found if one.dim == last - 1 and not one.within
                    ]
                if found:
                    yield side, number, found

    def _items_of_stacks(
        self, items: tuple[dict[int, Rows], dict[int, Rows]], *, are_turned: bool = False
    ) -> Iterator[tuple[int, int, list[tuple[int, Block]]]]:
        """Yield the side and id of each item, and its places in stacks, ignoring dimensions of 1."""
        stacks = Blocks(self._stacks[0]), Blocks(self._stacks[1])
        for side in (0, 1):
            rank = self._sides[1 - side].flow.rank
            for number, item in items[side].items():
                if number in self.places[side] or self._sides[side].numbers.get(number) in self._wholes[side]:
                    continue
                found = []
                for held, block in stacks[1 - side].find(item, self._noise(side, number)):
                    dim = next(dim for dim, size in enumerate(rank.value_by_id(held).shape) if size > 1)
                    found.append((held, replace(block, dim=dim, is_turned=are_turned)))
                if found:
                    yield side, number, found

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on which parts of the other side's outputs one side's outputs are."""
        more = len(self._said) - _MOST_NOTES
        rest = (f"{more} more outputs are parts of the other side's",) if more > 0 else ()
        return (*self._said[:_MOST_NOTES], *rest)

    def _is_all_but_padding(self, side: int, number: int, seen: Sequence[Piece]) -> bool:
        """Return True if the rest of a value, outside of one part, is one number, as rows added to a table are."""
        last = len(self._rows[side][number].shape) - 1
        for _, block in seen:
            is_turned = block.dim == last
            rows = self._turned[side][number] if is_turned else self._rows[side][number]
            if rows.is_padded(replace(block, dim=last - 1) if is_turned else block):
                return True
        return False

    def _note_covered(self, side: int, whole: Value, seen: Sequence[Piece]) -> None:
        """Note what covers a value, as the next step may begin with it."""
        rank = self._sides[1 - side].flow.rank
        self.covered.append(Covered(side, whole, tuple((rank.value_by_id(part), block) for part, block in seen)))

    def _noise(self, side: int, number: int) -> float:
        """Return how far rounding may move a value, by id."""
        evaluation = self._sides[side]
        writer = evaluation.flow.writer(evaluation.flow.rank.value_by_id(number))
        known = (number, *(() if writer is None else (writer[2].id,)))
        return max((evaluation.signatures[one].noise for one in known if one in evaluation.signatures), default=0.0)

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


def _squeezed(shapes: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return shapes without dimensions of 1."""
    return {tuple(size for size in shape if size != 1) for shape in shapes}


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with its last two dimensions exchanged."""
    return (*shape[:-2], *shape[-2:][::-1])


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
