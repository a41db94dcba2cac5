"""Matches the sources of both sides, so that both can be evaluated from the same contents.

Theory of operation
    A target's source stands for a baseline's if the elements are equal, in any dtype; or if the step before left both,
    and they were the same there; or if one is a cast of the other. If the step before was wrong, or is not on file,
    sources that are read in the same role stand for each other, because the question is what this step does. The
    baseline gets the target's contents. A source without a counterpart keeps its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from ...dump import Call, RankDump, Value
from ..evaluation.evaluation import Evaluation
from ..evaluation.memory import UNREADABLE
from ..flow.data_flow import DataFlow, once_per_flow
from ..flow.flat_memory import of_parts
from ..parts.blocks import Covered, Where
from ..parts.relaid import Places, Relaid, relaid_sources
from ..rerun.start_tensors import start_tensors
from ..signatures.signature import RECORDED, Signature, is_same, sign_value

How = Literal["equal", "left", "cast", "role"]
Contents = tuple[Any, ...]
_DIGITS_BYTES: Final = 4  # dtypes with enough digits that a rounding is no difference
_NEAR: Final = 2e-2  # relative L2 that a cast to another floating dtype may move contents
_LEAST_SHIFTED: Final = 4  # elements
_NORM_DIGITS: Final = 9  # digits of a norm that do not depend on the order of its terms


@dataclass(slots=True)
class Sources:
    """The matched sources of a step."""

    stand_ins: dict[int, torch.Tensor] = field(default_factory=dict)  # by id of the baseline's value
    pairs: list[tuple[Value, Value, How]] = field(default_factory=list)
    target: list[Value] = field(default_factory=list)  # without a counterpart
    baseline: list[Value] = field(default_factory=list)
    before: LeftBefore | None = None
    relaid: list[Relaid] = field(default_factory=list)  # with the other side's elements in other places
    are_shifted: bool = False  # an unmatched source has the other side's elements, as with padding on the left

    @property
    def were_in_parts(self) -> bool:
        """True if the step before left parts of the other side's values on one side."""
        return self.before is not None and bool(self.before.covered)


class Recorded:
    """The recorded contents of values, as signatures. Each is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Contents | None] = {}

    def contents(self, value: Value) -> Contents | None:
        """Return the contents of a value, or None if they were not recorded."""
        key = id(value.rank), value.id
        if key not in self._known:
            try:
                self._known[key] = sign_value(value).contents
            except UNREADABLE:
                self._known[key] = None
        return self._known[key]


class LeftBefore:
    """The contents that the step before left on both sides, by number; the next step begins with them."""

    def __init__(self, target: Evaluation, baseline: Evaluation, covered: Sequence[Covered] = ()) -> None:
        self.covered = covered  # values of one side that parts of the other side cover
        self._sides = target, baseline
        self._recorded = Recorded()
        self._by_size: dict[tuple[int, int], dict[Contents, set[int]]] = {}

    @property
    def apart(self) -> float:
        """How far rounding separates the numbers that both sides read from tensors."""
        return self._sides[0].in_python.apart

    def numbers(self, side: int, numel: int, contents: Contents) -> set[int]:
        """Return the numbers of a side's values with some contents that the step before left."""
        key = side, numel
        if key not in self._by_size:
            found: dict[Contents, set[int]] = {}
            evaluation = self._sides[side]
            for value in _last_values(evaluation.flow.rank, numel):
                number = evaluation.numbers.get(value.id)
                if number is not None and (known := self._recorded.contents(value)) is not None:
                    found.setdefault(known, set()).add(number)
            self._by_size[key] = found
        return self._by_size[key].get(contents, set())

    def writers(self, target: Value, baseline: Value) -> tuple[Call | None, Call | None] | None:
        """Return the last writers of two values with which the next step begins, each on its side.

        Returns:
            None if the step before did not leave both; no call for a value that it left unchanged.
        """
        left = self._left(0, target), self._left(1, baseline)
        if left[0] is None or left[1] is None:
            return None
        one, other = (side.flow.writer(value) for side, value in zip(self._sides, (left[0], left[1]), strict=True))
        return None if one is None else one[0], None if other is None else other[0]

    def _left(self, side: int, value: Value) -> Value | None:
        """Return the value of the step before with the contents of a value of the next step."""
        contents, evaluation = self._recorded.contents(value), self._sides[side]
        for one in _last_values(evaluation.flow.rank, value.numel) if contents is not None else ():
            if one.id in evaluation.numbers and self._recorded.contents(one) == contents:
                return one
        return None

    def are_left_alike(self, target: Value, baseline: Value) -> bool:
        """Return True if the same op was the last to write two values of the step before."""
        writers = [side.flow.writer(value) for side, value in zip(self._sides, (target, baseline), strict=True)]
        ops = [None if writer is None else writer[0].op for writer in writers]
        return ops[0] is not None and ops[0] == ops[1]

    def made(self, side: int, numel: int, contents: Contents) -> bool:
        """Return True if the step before of a side made a tensor of these contents, in memory of its own."""
        values = _last_values(self._sides[side].flow.rank, numel)
        own = (value for value in values if value.producer is not None and not value.from_outside)
        if any(self._recorded.contents(value) == contents for value in own):
            return True
        near = Signature(*contents)._replace(noise=RECORDED * contents[1])  # memory that was written in part
        return any(is_same(one, near) for one in self._sides[side].wholes)


def _last_values(rank: RankDump, numel: int) -> Iterator[Value]:
    """Yield the last values of a size in each memory."""
    newest: dict[int, int] = {}
    for record in rank.tables.values.records():
        newest[record.storage] = max(newest.get(record.storage, 0), record.version)
    for record in rank.tables.values.records():
        size = 1
        for step in record.shape:
            size *= step
        if size == numel and (not record.storage or record.version == newest[record.storage]):
            value = rank.value_by_id(record.id)
            if not (value.undefined or value.opaque):
                yield value


def sources_in(flow: DataFlow) -> list[Value]:
    """Return the values that calls read and no call made, in the order of their first reads."""
    found: dict[int, Value] = {}
    for call in flow.calls():
        for _, value in flow.reads(call):
            if value.id not in found and not (value.undefined or value.opaque) and flow.maker(value) is None:
                found[value.id] = value
    return list(found.values())


def match_sources(
    target: Evaluation, flow: DataFlow, before: LeftBefore | None, *, by_role: bool, recorded: Recorded
) -> Sources:
    """Match the sources of an evaluated target with those of a baseline.

    Args:
        target: evaluated.
        flow: of the baseline.
        before: what the step before left on both sides; None without one.
        by_role: True if sources that differ stand for each other if they are read in the same role.
        recorded: the contents.
    """
    matching = _Matching(target, flow, before, recorded)
    matching.pair("left", matching.left)
    matching.pair("equal", matching.equal)
    matching.pair("cast", matching.cast)
    matching.pair_parts()
    if by_role:
        matching.pair("role", matching.in_role)
    return matching.result()


class _Matching:
    """Finds, for each source of the baseline, the target's that stands for it."""

    def __init__(self, target: Evaluation, flow: DataFlow, before: LeftBefore | None, recorded: Recorded) -> None:
        self._found = Sources(before=before)
        self._before = before
        self._recorded = recorded
        ours, theirs = list(target.sources.values()), sources_in(flow)
        self._ours, self._theirs = of_parts(ours, theirs), of_parts(theirs, ours)
        self._known = {value.id: recorded.contents(value) for value in self._ours}
        self._others = {value.id: recorded.contents(value) for value in self._theirs}
        self._flows = target.flow, flow
        self._places = roles(target.flow), roles(flow)
        self._by_contents: dict[Contents | None, list[Value]] = defaultdict(list)
        self._by_size: dict[int, list[Value]] = defaultdict(list)
        self._by_role: dict[Hashable, Value] = {}
        for value in self._ours:
            self._by_contents[self._known[value.id]].append(value)
            self._by_size[value.numel].append(value)
            self._by_role.setdefault(self._places[0].get(value.id), value)

    def pair(self, how: How, candidates: Callable[[Value], list[Value]]) -> None:
        """Pair the remaining sources of the baseline: first by equal elements, then by role."""
        left = []
        for value in self._theirs:
            matches = candidates(value)
            contents = self._others[value.id]
            equal = [one for one in matches if contents is not None and self._known[one.id] == contents]
            if equal:
                self._found.pairs.append((equal[0], value, "equal"))
            elif not (matches and self._stands_in(matches, value, how)):
                left.append(value)
        self._theirs = left

    def _stands_in(self, matches: list[Value], value: Value, how: How) -> bool:
        role = self._places[1].get(value.id)
        match = next((one for one in matches if self._places[0].get(one.id) == role), None)
        # The first reader may be a kernel here and an op there; an optimizer reads both in the same way.
        if match is None:
            ours, theirs = (roles_by_phase(flow) for flow in self._flows)
            known = theirs.get(value.id, frozenset())
            match = max(
                matches, key=lambda one: (len(ours.get(one.id, frozenset()) & known), -self._unlike(one, value))
            )
        try:
            self._found.stand_ins[value.id] = start_tensors([match])[match.id].reshape(value.shape)
        except UNREADABLE:
            return False
        self._found.pairs.append((match, value, how))
        return True

    def _unlike(self, one: Value, other: Value) -> float:
        """Return how different the norms of two sources are: moments that are pure rounding errors have one number."""
        sizes = [0.0 if found is None else float(found[1]) for found in (self._known[one.id], self._others[other.id])]
        most = max(sizes)
        return abs(sizes[0] - sizes[1]) / most if most else 0.0

    def pair_parts(self) -> None:
        """Let values that the step before left in parts, or as a part, stand for the baseline's sources."""
        for value in list(self._theirs) if self._before is not None and self._before.covered else ():
            pieces = self._pieces(value)
            try:
                contents = None if pieces is None else _assembled(value, pieces)
            except UNREADABLE:
                contents = None
            if pieces is not None and contents is not None:
                self._found.stand_ins[value.id] = contents
                self._found.pairs += [(one, value, "left") for one, _, _ in pieces]
                self._theirs.remove(value)
                self._note_relaid(value, pieces)

    def _note_relaid(self, value: Value, pieces: Sequence[tuple[Value, Where, bool]]) -> None:
        """Note the places of a source's elements that the step before left in another layout."""
        found = tuple((one, where) for one, where, _ in pieces if isinstance(where, Places))
        if found and not pieces[0][2]:
            self._found.relaid.append(Relaid(1, value, found))
        elif found:
            whole, where = found[0]
            known = next((one for one in self._found.relaid if one.whole is whole), None)
            if known is not None:
                self._found.relaid.remove(known)
            self._found.relaid.append(Relaid(0, whole, (*(known.pieces if known else ()), (value, where))))

    def _pieces(self, value: Value) -> list[tuple[Value, Where, bool]] | None:
        """Return the target's sources of which a baseline's is made, or a part: with the place, and if it is the part.

        Pure rounding error may be a part of many values. The smallest value that the same op left, with the same number
        of dimensions, is taken.
        """
        contents, wholes = self._others[value.id], list[tuple[tuple[bool, bool, int], tuple[Value, Where, bool]]]()
        for one in self._before.covered if self._before is not None and contents is not None else ():
            if one.side == 1 and one.whole.shape == value.shape and self._recorded.contents(one.whole) == contents:
                found = [(self._left_as(part), block) for part, block in one.pieces]
                pieces = [(part, block, False) for part, block in found if part is not None]
                if pieces:
                    return pieces
            for part, block in one.pieces if one.side == 0 else ():
                if part.shape == value.shape and self._recorded.contents(part) == contents:
                    whole = self._left_as(one.whole)
                    if whole is not None and self._before is not None:
                        is_other = not self._before.are_left_alike(one.whole, part)
                        far = is_other, len(whole.shape) != len(part.shape), whole.numel
                        wholes.append((far, (whole, block, True)))
        return [min(wholes, key=lambda found: found[0])[1]] if wholes else None

    def _left_as(self, value: Value) -> Value | None:
        """Return the target's source with the contents of a value of the step before."""
        contents = self._recorded.contents(value)
        found = self._by_contents.get(contents, []) if contents is not None else []
        return next((one for one in found if one.shape == value.shape), None)

    def left(self, value: Value) -> list[Value]:
        """Return the source that the step before left, and that was the same there."""
        contents = self._others[value.id]
        if self._before is None or contents is None:
            return []
        numbers = self._before.numbers(1, value.numel, contents)
        found = []
        for one in self._by_size.get(value.numel, ()) if numbers else ():
            ours = self._known[one.id]
            if ours is not None and self._before.numbers(0, one.numel, ours) & numbers:
                found.append(one)
                if ours == contents:
                    return [one]
        return found

    def equal(self, value: Value) -> list[Value]:
        """Return the source with the same elements."""
        contents = self._others[value.id]
        return [] if contents is None else self._by_contents.get(contents, [])

    def cast(self, value: Value) -> list[Value]:
        """Return the source that is a cast of this one."""
        return [one for one in self._by_size.get(value.numel, ()) if _is_cast(one, value)]

    def in_role(self, value: Value) -> list[Value]:
        """Return the source that is read in the same role."""
        one = self._by_role.get(self._places[1].get(value.id))
        return [] if one is None or one.shape != value.shape else [one]

    def result(self) -> Sources:
        """Return the matches, and the sources without one."""
        paired = {one.id for one, _, _ in self._found.pairs}
        equal = {self._known[one.id] for one, _, _ in self._found.pairs} - {None}
        self._found.target = [one for one in self._ours if one.id not in paired and self._known[one.id] not in equal]
        self._found.baseline = self._theirs
        self._found.relaid += relaid_sources(self._flows, (self._found.target, self._found.baseline))
        ours = {key for value in self._found.target if (key := _of_elements(self._known[value.id])) is not None}
        theirs = {_of_elements(self._others[value.id]) for value in self._found.baseline}
        self._found.are_shifted = not ours.isdisjoint(theirs)
        return self._found


def _of_elements(contents: Contents | None) -> tuple[int, float] | None:
    """Return a key that is equal for the same elements in any order; None for a single element."""
    return None if contents is None or contents[0] < _LEAST_SHIFTED else (contents[0], round(contents[1], _NORM_DIGITS))


def _assembled(value: Value, pieces: Sequence[tuple[Value, Where, bool]]) -> torch.Tensor | None:
    """Return the contents of a source, joined from parts or cut out of a whole; None if parts are missing."""
    if pieces[0][2]:
        whole, block, _ = pieces[0]
        part = block.take(start_tensors([whole])[whole.id])
        return part.reshape(value.shape).clone()
    outside = torch.nan if len(pieces) > 1 else 0.0  # the rest beside one part is zeros
    found = torch.full(value.shape, outside, dtype=torch.float64)
    for one, block, _ in pieces:
        block.put(found, start_tensors([one])[one.id].reshape(one.shape))
    return None if bool(found.isnan().any()) else found


def rounded_sources(sides: tuple[DataFlow, DataFlow], sources: Sources, side: int) -> dict[int, torch.Tensor]:
    """Return contents, by id, for sources of low precision without a counterpart: each one rounding away.

    The other side may compute in full precision what was stored here after rounding, such as weights with merged
    adapters. An evaluation with these contents shows how far rounding moves each value. A source is left out if the
    other side has one without a counterpart in the same role: then the contents differ.
    """
    generator = torch.Generator().manual_seed(11)
    found = {}
    odd = (sources.target, sources.baseline)
    ours, theirs = roles(sides[side]), roles(sides[1 - side])
    others = {theirs.get(value.id) for value in odd[1 - side]}
    for value in odd[side]:
        if (
            ours.get(value.id) not in others
            and value.is_floating
            and not value.dtype.is_complex
            and value.dtype.itemsize < _DIGITS_BYTES
        ):
            try:
                tensor = start_tensors([value])[value.id]
            except UNREADABLE:
                continue
            if tensor.layout is torch.strided:
                drawn = torch.rand(tensor.shape, dtype=torch.float64, generator=generator) - 0.5
                found[value.id] = tensor + tensor * drawn * torch.finfo(value.dtype).eps
    return found


def _is_cast(one: Value, other: Value) -> bool:
    """Return True if one of two values is a cast of the other to another floating dtype."""
    if one.dtype_name == other.dtype_name or not (one.is_floating and other.is_floating) or one.shape != other.shape:
        return False
    try:
        ours, theirs = (value.shared_tensor().to_dense().double() for value in (one, other))
    except UNREADABLE:
        return False
    return bool((ours - theirs).norm() <= _NEAR * theirs.norm())


@once_per_flow
def roles(flow: DataFlow) -> dict[int, Hashable]:
    """Return where each source is read first: module, phase, op, slot, and a count of earlier ones there."""
    counts: Counter[Hashable] = Counter()
    found: dict[int, Hashable] = {}
    for call in flow.calls():
        for slot, value in flow.reads(call):
            if value.id not in found and flow.maker(value) is None:
                role = call.module, call.phase, call.op, slot
                found[value.id] = (*role, counts[role])
                counts[role] += 1
    return found


@once_per_flow
def roles_by_phase(flow: DataFlow) -> dict[int, frozenset[Hashable]]:
    """Return where each source is read first in each phase: phase, op, slot, and a count of earlier ones there."""
    counts: Counter[Hashable] = Counter()
    found: dict[int, dict[str, Hashable]] = {}
    for call in flow.calls():
        for slot, value in flow.reads(call):
            if flow.maker(value) is None and call.phase not in found.setdefault(value.id, {}):
                role = call.phase, call.op, slot
                found[value.id][call.phase] = (*role, counts[role])
                counts[role] += 1
    return {number: frozenset(known.values()) for number, known in found.items()}
