"""The first cause of a difference: the first calls behind the cut, on both sides, and what tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...dump import Call, Value
from ..cone.cone import Cone, cone_of
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..evidence.findings import FindingKind
from ..flow.argument_differences import argument_differences
from ..sources.stand_ins import Sources
from .left_alone import left_alone, name_of
from .other_sources import computing, other_source
from .unwritten import unwritten

_MOST_NAMED: Final = 3
_DETACH: Final = "aten::detach"


@dataclass(frozen=True, slots=True)
class Cause:
    """What makes two steps different functions.

    At least one of the two calls is there; `side` says whose it is that the cause is named by.
    """

    kind: FindingKind
    target: Call | None
    baseline: Call | None
    text: str  # one sentence
    inputs: str = ""  # what is known of the inputs, a clause
    slot: str = "output"
    calls: tuple[str, ...] = ()  # of both regions
    takes_another: bool = False  # of the results of one call, each side goes on with another

    @property
    def named(self) -> Call:
        """The call that the cause is named by."""
        found = self.target or self.baseline
        assert found is not None
        return found


class Causes:
    """Finds the cause of ends that differ.

    It has more than twenty methods, one for each thing that may tell two calls apart.
    """

    def __init__(self, sides: tuple[Evaluation, Evaluation], sources: Sources, pairs: Sequence[Pair] = ()) -> None:
        """Prepare to look.

        Args:
            sides: evaluated.
            sources: how those of both sides were matched.
            pairs: of calls that stand at the same place in both programs.
        """
        self._sides = sides
        self._pairs = {pair.target.id: pair for pair in pairs}, {pair.baseline.id: pair for pair in pairs}
        self._sources = sources
        self.cones: tuple[Cone, Cone] = (Cone(), Cone())

    def find(self, odd: tuple[Sequence[End], Sequence[End]]) -> Cause:
        """Return the cause of some ends that one side lacks."""
        if (alone := left_alone(odd, (self._sides[0].flow, self._sides[1].flow))) is not None:
            return _at("left", *alone)
        cones = self.cones = self._behind(odd)
        earliest = self._behind(self._earliest(odd))
        if any(cone.calls for cone in earliest):
            cones = earliest
        if (found := unwritten(self._sides, cones)) is not None:
            return Cause("rewired", found[0], found[1], found[2], "", found[3])
        if (calls := self._reading_others(cones)) is not None:
            return calls
        first, other = cones[0].first, cones[1].first
        begins_in_backward = all(call is None or call.phase != "forward" for call in (first, other))
        if begins_in_backward and (cut := self._cut_gradient(cones)) is not None:
            return cut
        if first is None and other is None:
            return self._at_an_end(odd)
        cause = self._behind_the_cut(cones, first, other)
        if all(end.kind == "left" for ends in odd for end in ends):
            side = 0 if odd[0] else 1
            name = name_of(self._sides[side].flow, odd[side][0].value)
            cause = replace(cause, text=f"{cause.text}; {name} is left behind otherwise")
        return cause

    def _behind(self, odd: tuple[Sequence[End], Sequence[End]]) -> tuple[Cone, Cone]:
        target, baseline = self._sides
        return (
            cone_of(target, baseline.holders, [end.value for end in odd[0]]),
            cone_of(baseline, target.holders, [end.value for end in odd[1]]),
        )

    def _earliest(self, odd: tuple[Sequence[End], Sequence[End]]) -> tuple[Sequence[End], Sequence[End]]:
        """Return the ends to ask first: those of the forward, else the first gradient that both sides have.

        Later ends rest on more that is written otherwise and makes no difference: what a fused attention keeps for its
        backward has no counterpart in one that is written out.
        """
        forward = (
            [end for end in odd[0] if self._phase(0, end) == "forward"],
            [end for end in odd[1] if self._phase(1, end) == "forward"],
        )
        if any(forward):
            return forward
        theirs = {end.name: end for end in odd[1] if end.kind == "gradient"}
        both = [end for end in odd[0] if end.kind == "gradient" and end.name in theirs]
        if not both:
            return odd
        first = min(both, key=lambda end: self._made_at(0, end))
        return [first], [theirs[first.name]]

    def _phase(self, side: int, end: End) -> str:
        writer = self._sides[side].flow.writer(end.value)
        return "" if writer is None else writer[0].phase

    def _made_at(self, side: int, end: End) -> int:
        writer = self._sides[side].flow.writer(end.value)
        return 0 if writer is None else writer[0].id

    # -- behind the cut ----------------------------------------------------------------------------------------------

    def _behind_the_cut(self, cones: tuple[Cone, Cone], first: Call | None, other: Call | None) -> Cause:
        calls = tuple(call.name for cone in cones for _, call in sorted(cone.calls.items()))
        if first is None or other is None:
            return self._one_sided(first, other, calls)
        if first.op == other.op:
            return self._same_op(cones, first, other)
        for pair in (self._pairs[0].get(first.id), self._pairs[1].get(other.id)):
            if pair is not None and self._is_asked_otherwise(pair):
                return self._same_op(cones, pair.target, pair.baseline)
        counts = [Counter(call.op for call in cone.calls.values()) for cone in cones]
        lacks = counts[1][other.op] > counts[0][other.op]
        adds = counts[0][first.op] > counts[1][first.op]
        if lacks and not adds:
            return self._one_sided(None, other, calls)
        if adds and not lacks:
            return Cause("region", first, None, f"the baseline has no such call{self._where(other)}", calls=calls)
        text = f"the target computes {_op(first)}, the baseline {_op(other)} ({_line(other)})"
        return Cause("region", first, other, text, self._same_inputs(0, first, other), calls=calls)

    def _reading_others(self, cones: tuple[Cone, Cone]) -> Cause | None:
        """Return the cause where the first calls that compute are alike, and read other memory from outside."""
        found = [computing(side.flow, cone) for side, cone in zip(self._sides, cones, strict=True)]
        first, other = found
        if first is None or other is None or first.op != other.op or argument_differences(first, other):
            return None
        source = other_source(self._sides, self._sources, first, other)
        return None if source is None else Cause("source", first, other, source[1], "", source[0])

    def _one_sided(self, first: Call | None, other: Call | None, calls: tuple[str, ...]) -> Cause:
        if first is None:
            assert other is not None
            return Cause("region", None, other, f"the target has no such call: {_op(other)}", calls=calls)
        return Cause("region", first, None, f"the baseline has no such call: {_op(first)}", calls=calls)

    def _is_asked_otherwise(self, pair: Pair) -> bool:
        """Return True if two calls do the same op on the same values with other arguments.

        Only one of them lies behind the cut if the side of the other makes its value elsewhere too: a mask, a table.
        """
        read = [
            [side.numbers.get(value.id) for _, value in side.flow.reads(call)]
            for side, call in zip(self._sides, (pair.target, pair.baseline), strict=True)
        ]
        return (
            pair.target.op == pair.baseline.op
            and read[0] == read[1]
            and any(found.dtypes is None for found in argument_differences(pair.target, pair.baseline))
        )

    def _where(self, call: Call) -> str:
        return f"; from there on it computes {_op(call)} ({_line(call)})"

    def _same_op(self, cones: tuple[Cone, Cone], first: Call, other: Call) -> Cause:
        """Return what tells two calls of one op apart: arguments, sources, draws, wiring, dtype."""
        differences = argument_differences(first, other)
        numbers = [difference for difference in differences if difference.dtypes is None]
        if numbers:
            text = "; ".join(map(str, numbers[:_MOST_NAMED]))
            name = numbers[0].name
            return Cause("argument", first, other, f"other arguments: {text}", self._same_inputs(0, first, other), name)
        if (source := other_source(self._sides, self._sources, first, other)) is not None:
            return Cause("source", first, other, source[1], "", source[0])
        odd = [(slot, value) for slot, value in self._sides[0].flow.reads(first) if self._is_odd_source(0, value)]
        if odd:
            slot, value = odd[0]
            return Cause("source", first, other, f"it reads other contents, {self._left(value)}", "", slot)
        if first.id in self._sides[0].flow.rank.tables.random:
            return Cause("random", first, other, "it draws other random numbers")
        rewired = [*self._rewired(first, other)]
        if rewired:
            return Cause("rewired", first, other, rewired[0][1], "", rewired[0][0])
        taken = [self._taken(side, call) for side, call in enumerate((first, other))]
        if taken[0] and taken[1] and taken[0] != taken[1]:
            text = f"the target goes on with {taken[0]} of it, the baseline with {taken[1]}"
            same = self._same_inputs(0, first, other)
            return Cause("rewired", first, other, text, same, taken[0], takes_another=True)
        text = "from the same inputs it computes something else"
        return Cause("op", first, other, text, self._same_inputs(0, first, other))

    def _taken(self, side: int, call: Call) -> str:
        """Return the slots of a view that what differs was made of; "" of another call."""
        evaluation, other = self._sides[side], self._sides[1 - side]
        if not evaluation.flow.is_view(call):
            return ""
        slots = call.output_values()
        return ", ".join(s for s, v in slots if evaluation.numbers.get(v.id, 0) not in (0, *other.holders))

    def _is_odd_source(self, side: int, value: Value) -> bool:
        evaluation, other = self._sides[side], self._sides[1 - side]
        return evaluation.flow.maker(value) is None and evaluation.numbers.get(value.id) not in other.holders

    @staticmethod
    def _left(value: Value) -> str:
        step = getattr(value.rank, "step", 0)
        return f"which no call of step {step} made"

    def _rewired(self, first: Call, other: Call) -> Iterator[tuple[str, str]]:
        """Yield the slots in which two calls read different ones of the same values, and what they read."""
        theirs = dict(self._sides[1].flow.reads(other))
        for slot, value in self._sides[0].flow.reads(first):
            if slot in theirs:
                numbers = self._sides[0].number_of(value), self._sides[1].number_of(theirs[slot])
                if numbers[0] != numbers[1]:
                    yield slot, f"it reads {_maker(value)}, the baseline's reads {_maker(theirs[slot])}"

    def _same_inputs(self, side: int, first: Call, other: Call) -> str:
        ours = {self._sides[0].numbers.get(value.id) for _, value in self._sides[0].flow.reads(first)}
        theirs = {self._sides[1].numbers.get(value.id) for _, value in self._sides[1].flow.reads(other)}
        if ours == theirs and ours:
            return "its inputs are the same"
        return "its inputs are the same as values of the baseline" if ours else ""

    # -- gradients ---------------------------------------------------------------------------------------------------

    def _cut_gradient(self, cones: tuple[Cone, Cone]) -> Cause | None:
        """Return where one side cuts off a gradient that the other has: a detach, or a value that needs none."""
        texts = (
            "it cuts off the gradient that the baseline has here",
            "it cuts off the gradient that the target has here",
        )
        found: list[tuple[int, Cause]] = []
        for side, text in enumerate(texts):
            cut = self._detach(side, cones[1 - side]) or self._first_cut(side)
            first = cones[1 - side].first
            if cut is not None and (
                first is None or first.forward is None or cut.id <= max(first.id, first.forward.id)
            ):
                found.append((cut.id, _at("gradient", side, cut, text)))
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def _detach(self, side: int, other: Cone) -> Call | None:
        """Return the detach, on one side alone, of what a call made or read whose backward only the other side has."""
        theirs = self._sides[1 - side]
        detached = self._detached(side)
        for number in self._detached(1 - side):
            detached.pop(number, None)
        for _, lost in sorted(other.calls.items()) if detached else ():
            forward = lost.forward if lost.phase == "backward" else None
            if forward is not None:
                for _, value in (*theirs.flow.results(forward), *theirs.flow.reads(forward)):
                    found = detached.get(theirs.numbers.get(value.id, 0))
                    if found is not None:
                        return found
        return None

    def _detached(self, side: int) -> dict[int, Call]:
        """Return what the forward of a side detaches: the first call for each number."""
        evaluation = self._sides[side]
        found: dict[int, Call] = {}
        for call in evaluation.flow.calls():
            if call.op == _DETACH and call.phase == "forward":
                for _, value in call.input_values():
                    found.setdefault(evaluation.numbers.get(value.id, 0), call)
        found.pop(0, None)
        return found

    def _first_cut(self, side: int) -> Call | None:
        evaluation, other = self._sides[side], self._sides[1 - side]
        flow, theirs = evaluation.flow, other.flow.rank
        for call in flow.calls():
            if call.phase != "forward":
                continue
            for _, value in call.output_values():
                if not value.is_floating or value.requires_grad or value.undefined:
                    continue
                if not any(v.requires_grad for _, v in call.input_values()):
                    continue
                number = evaluation.numbers.get(value.id)
                held = [theirs.value_by_id(i) for i in other.holders.get(number, ())] if number else []
                if held and all(v.requires_grad for v in held):
                    return call
        return None

    def _at_an_end(self, odd: tuple[Sequence[End], Sequence[End]]) -> Cause:
        """Return the cause where every value has a counterpart, and an end has another one."""
        side = 0 if odd[0] else 1
        end = odd[side][0]
        flow = self._sides[side].flow
        writer = flow.writer(end.value)
        call = writer[0] if writer else next(iter(flow.calls()))
        kind: FindingKind = {"loss": "loss", "gradient": "gradient", "left": "left", "output": "result"}[end.kind]  # type: ignore[assignment]
        text = f"{end.name} is another one of the values that both sides have"
        return _at(kind, side, call, text)


def _at(kind: FindingKind, side: int, call: Call, text: str) -> Cause:
    """Return a cause at a call of one side."""
    return Cause(kind, None if side else call, call if side else None, text)


def _op(call: Call) -> str:
    return call.op


def _line(call: Call) -> str:
    return call.where or call.name


def _maker(value: Value) -> str:
    made = value.producer
    return "a value from outside the step" if made is None else f"{made[0].name}.{made[1]}"
