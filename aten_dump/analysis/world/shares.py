"""Finds values of one side that are shares of the other side's: a rank's part of the work.

Theory of operation
    Both sides are evaluated again, and each value without a counterpart is looked for in the other side's values: as a
    block along one dimension (samples, features, heads, tokens); as slices along one dimension, anywhere in a value;
    and as a term of a sum over all ranks. A value may also be a multiple, as a rank's loss is a mean of its own
    samples. What is found has its counterpart there, and so has what the found values cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from torch import Tensor

from ...dump import Value
from ..ends.ends import End, number_of
from ..evaluation.evaluation import Evaluation, Shared
from ..parts.blocks import Block, Blocks, Rows, can_be_block
from ..parts.parts import covers, numbers_of
from ..signatures.numbering import Numbering
from ..signatures.signature import sign
from .arrangements import beside
from .side import Side

Odd = tuple[Sequence[End], Sequence[End]]
_Beside = tuple[int, tuple[int, ...]]
_WITH_BIAS: Final = ("aten::addmm", "aten::baddbmm")  # ops that add their first input to the product of the others
_MOST_SLICES: Final = 256
_MOST_FLAT: Final = 1 << 16  # most elements of a tensor in which flat pieces are looked for
_MOST_TERM: Final = 1 << 22  # most elements of a value that is summed over ranks


@dataclass(slots=True)
class _Terms:
    """The sum of all ranks' values at one place."""

    total: Tensor
    values: list[int]


class Shares:
    """Finds shares, and lets both sides have their numbers."""

    def __init__(self, sides: tuple[Side, Side], numbering: Numbering) -> None:
        self._sides = sides
        self._numbering = numbering
        self._rows: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})
        self._turned: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})  # with the last two dimensions exchanged
        self._flat: tuple[dict[int, Rows], dict[int, Rows]] = ({}, {})  # in a row
        self._terms: tuple[dict[object, _Terms], dict[object, _Terms]] = ({}, {})
        counts = {len(side.rank.ranks) for side in sides} | {max(1, len(side.losses())) for side in sides}
        counts |= {one // other for one in counts for other in counts if one % other == 0}
        self.terms: tuple[set[int], set[int]] = (set(), set())  # numbers of terms of a sum over ranks
        self.sums: tuple[set[int], set[int]] = (set(), set())  # numbers of ends of which the other side has the mean
        self._scales = sorted({1.0, *map(float, counts), *(1.0 / count for count in counts)}, key=lambda s: abs(s - 1))

    def find(self, stand_ins: tuple[Mapping[int, Tensor], Mapping[int, Tensor]], odd: Odd) -> None:
        """Evaluate both sides again, and let both have the numbers of what is found.

        Args:
            stand_ins: contents of each side's sources, by id, that are not taken as recorded.
            odd: ends that differ. A sum over ranks that is such an end has no counterpart, even if its mean has one.
        """
        shared = Shared()
        for side, contents in enumerate(stand_ins):
            again = Evaluation(self._sides[side].step, shared, contents, leads=side == 0)
            again.watch_all = partial(self._watch, again, side)
            again.run()
        for side in (0, 1):
            self._find_zeros(side)
            self._find_terms(side, {number_of(self._sides[side].evaluation, end.value) for end in odd[side]})
        self._find_blocks()

    # -- looking -----------------------------------------------------------------------------------------------------

    def _watch(self, again: Evaluation, side: int, value: Value, tensor: Tensor) -> None:
        is_source = self._sides[side].flow.maker(value) is None
        is_odd = self._is_odd(side, value)
        self._add_without_bias(again, side, value, tensor)
        if value.id in self._rows[side] or not can_be_block(tensor) or not (is_odd or is_source):
            return
        self._rows[side][value.id] = Rows(tensor)
        if tensor.dim() > 1:
            self._turned[side][value.id] = Rows(tensor.transpose(-1, -2))
        if tensor.numel() <= _MOST_FLAT:
            self._flat[side][value.id] = Rows(tensor.reshape(-1)) if tensor.dim() > 1 else self._rows[side][value.id]
        if (
            is_odd
            and tensor.is_floating_point()
            and tensor.numel() <= _MOST_TERM
            and len(self._sides[side].rank.ranks) > 1
        ):
            self._add_term(side, value, tensor)

    def _add_without_bias(self, again: Evaluation, side: int, value: Value, tensor: Tensor) -> None:
        """Let a side have the product without the bias of a fused call: ranks add it to the sum of their terms."""
        maker = again.flow.maker(value)
        if maker is None or maker.op not in _WITH_BIAS or maker.record.kwargs or maker.record.args[3:]:
            return
        bias = again.held(maker.input_values()[0][1])
        if bias is not None:
            self._let_have(side, self._numbering.number(sign(tensor - bias)))

    def _add_term(self, side: int, value: Value, tensor: Tensor) -> None:
        """Add a value to those that other ranks made at the same place."""
        rank = self._sides[side].rank
        maker = self._sides[side].flow.maker(value)
        if maker is None:
            return
        slot = next((slot for slot, number in maker.output_slots() if number == value.id), None)
        slot = slot or next((slot for slot, number in maker.written_slots() if number == value.id), "")
        key = rank.origin(maker.id).name, slot, tuple(tensor.shape)
        known = self._terms[side].get(key)
        if known is None:
            self._terms[side][key] = _Terms(tensor.detach().clone(), [value.id])
        elif len(known.values) < len(rank.ranks):
            known.total += tensor
            known.values.append(value.id)

    def _is_odd(self, side: int, value: Value) -> bool:
        numbers = numbers_of(self._sides[side].evaluation, value)
        return bool(numbers) and not self._is_known(side, numbers)

    def _is_known(self, side: int, numbers: list[int]) -> bool:
        return any(number in self._sides[1 - side].evaluation.holders for number in numbers)

    # -- finding -----------------------------------------------------------------------------------------------------

    def _find_zeros(self, side: int) -> None:
        """Let the other side have the zeros that a side begins with: they are a share of any zeros."""
        evaluation = self._sides[side].evaluation
        for id in evaluation.sources:
            signature = evaluation.signatures.get(id)
            if signature is not None and not signature.norm and not signature.nonfinite:
                self._let_have(1 - side, evaluation.numbers.get(id))

    def _find_terms(self, side: int, wrong: Container[int | None]) -> None:
        """Find the terms of a sum that the other side has, or of a mean, which is a multiple of the sum."""
        rank, other = self._sides[side].rank, self._sides[1 - side].evaluation
        for terms in self._terms[side].values():
            numbers = {self._sides[side].evaluation.numbers.get(id) for id in terms.values}
            if len(terms.values) < len(rank.ranks) or len(numbers) == 1:  # replicas are not terms
                continue
            found = ((scale, self._numbering.find(sign(terms.total * scale))) for scale in self._scales)
            scale = next((scale for scale, number in found if number is not None and number in other.holders), None)
            if scale is None:
                continue
            total = self._numbering.find(sign(terms.total))
            if total is None or total not in wrong:
                self._let_have(1 - side, total)
            elif scale < 1:
                self.sums[side].add(total)
            for id in terms.values:
                for own in numbers_of(self._sides[side].evaluation, rank.value_by_id(id)):
                    self._let_have(1 - side, own)
                    self.terms[side].add(own)

    def _find_blocks(self) -> None:
        covered: tuple[dict[tuple[int, float], list[Block]], ...] = (defaultdict(list), defaultdict(list))
        parts: list[tuple[int, Value]] = []
        for rows in (self._rows, self._turned, self._flat):
            turned = rows is self._turned
            blocks = Blocks(rows[0]), Blocks(rows[1])
            for side in (0, 1):
                shapes = {one.shape for one in rows[1 - side].values()}
                likely = {(dim, beside(shape, dim)) for shape in shapes for dim in range(len(shape) - 1)}
                for id, own in rows[side].items():
                    value = self._sides[side].rank.value_by_id(id)
                    if self._is_known(side, numbers_of(self._sides[side].evaluation, value)):
                        continue
                    found = list(self._blocks_of(own, blocks[1 - side], likely))
                    if found:
                        parts.append((side, value))
                    for held, scale, block in found:
                        dim = _turned_dim(block.dim, len(own.shape)) if turned else block.dim
                        covered[1 - side][held, scale].append(Block(dim, block.start, block.length, block.size))
        for side, value in parts:
            for number in numbers_of(self._sides[side].evaluation, value):
                self._let_have(1 - side, number)
        for side in (0, 1):
            for (id, _), seen in covered[side].items():
                if covers(seen):
                    for number in numbers_of(self._sides[side].evaluation, self._sides[side].rank.value_by_id(id)):
                        self._let_have(1 - side, number)

    def _blocks_of(self, own: Rows, blocks: Blocks, likely: Container[_Beside]) -> Iterator[tuple[int, float, Block]]:
        """Yield the places of a tensor, or of a multiple, in the other side's: in one piece, or slice by slice.

        Args:
            own: the tensor.
            blocks: the other side's.
            likely: dimensions of the other side's tensors, each with the sizes of the remaining dimensions.
        """
        for scale in self._scales:
            part = own if scale == 1 else own.scaled(scale)
            found = blocks.find(part)
            if found:
                yield from ((held, scale, block) for held, block in found)
                return
        for scale in self._scales[:3]:
            part = own if scale == 1 else own.scaled(scale)
            for dim in range(len(own.shape) - 1):
                if (dim, beside(part.shape, dim)) in likely:
                    found = list(_slices(part, dim, blocks))
                    yield from ((id, scale, b) for id, b in found if scale == 1 or b.size > own.shape[dim])

    def _let_have(self, side: int, number: int | None) -> None:
        if number is not None:
            self._sides[side].evaluation.holders.setdefault(number, [])


def _slices(part: Rows, dim: int, blocks: Blocks) -> Iterator[tuple[int, Block]]:
    """Yield the places of a tensor's slices along a dimension in one other tensor."""
    count = part.shape[dim]
    held: dict[int, list[Block]] | None = None
    if not 1 < count <= _MOST_SLICES or not blocks.may_have_slices(part, dim):
        return
    for start in range(count):
        found: dict[int, list[Block]] = {}
        for id, block in blocks.find(part.slice(dim, start)):
            if block.dim == dim and (held is None or id in held):
                found.setdefault(id, []).append(block)
        held = {id: [*(held or {}).get(id, ()), *some] for id, some in found.items()}
        if not held:
            return
    yield from ((id, block) for id, some in (held or {}).items() for block in some)


def _turned_dim(dim: int, dims: int) -> int:
    return {dims - 1: dims - 2, dims - 2: dims - 1}.get(dim, dim)
