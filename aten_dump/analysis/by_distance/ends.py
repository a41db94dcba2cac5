"""What a step is for, compared directly: losses, gradients by their names, and what is left in memory.

Theory of operation
    Whatever the pairs of calls say, these must agree. Most are results of paired calls and known by then; the others
    are compared by their numbers. A gradient of one side alone is a finding, and so is memory that one side alone
    changes. Which memory of one side is which of the other's is known by the calls that were given both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...dump import Call, RankDump, Value
from ...dump.across_ranks.part_holders import Holders
from ..distance.value_distance import closeness
from ..evidence.evidence_rows import Pair
from ..evidence.findings import FindingKind, Row
from ..evidence.judgement import Judgement
from ..flow.counterparts import Side
from ..flow.left_memory import LeftMemory, LeftPlace
from ..flow.roots import roots_of
from ..pairing.call_keys import normal_module
from .walk import Walk


@dataclass(frozen=True, slots=True)
class End:
    """Something that a step is for, on both sides."""

    kind: FindingKind
    name: str
    target: Value
    baseline: Value


class Ends:
    """Compares the ends of two recordings after they were walked; `unknown` names those that could not be compared."""

    def __init__(self, walk: Walk, modules: Mapping[str, str], *, read_data: bool) -> None:
        """Prepare to compare; `modules` are the target's that go by other names in the baseline."""
        self._modules = modules
        self._walk = walk
        self._read_data = read_data
        self._memory = tuple(LeftMemory(flow, read_data=read_data) for flow in walk.flows)
        self.unknown: list[str] = []
        self.agree = False  # all ends that are known do

    def run(self) -> None:
        before = len(self._walk.evidence.findings)
        tells_memory = not any(rank.config.get("source") for rank in self._walk.ranks)  # other tools do not
        found = [*self._losses(), *self._gradients(), *(self._left() if tells_memory else ())]
        for end in found:
            self._judge(end)
        if tells_memory:
            self._left_alone()
        is_new = len(self._walk.evidence.findings) > before
        self.agree = not is_new and all(map(self._agrees, found))

    def _agrees(self, end: End) -> bool:
        state, close = self._walk.state(end.target, end.baseline), self._walk.known.close(end.target, end.baseline)
        if state is not None and state.status in ("same", "unknown"):
            return True
        return self._walk.is_near(end.target, end.baseline, close)

    def _losses(self) -> Iterator[End]:
        ours, theirs = map(roots_of, self._walk.ranks)
        if len(ours) == len(theirs):  # else one side takes it in parts, which gradients show
            for number, both in enumerate(zip(ours, theirs, strict=True)):
                yield End("loss", f"loss {number}" if len(ours) > 1 else "loss", *both)

    def _gradients(self) -> Iterator[End]:
        ours, theirs = map(_gradients_of, self._walk.ranks)
        ours = {self._renamed(name): value for name, value in ours.items()}
        for name, value in ours.items() if theirs else ():
            if name in theirs:
                yield End("gradient", f"gradient of {name}", value, theirs[name])
        if ours and theirs and ours.keys() & theirs.keys():
            for side, gradients, others in ((0, ours, theirs), (1, theirs, ours)):
                for name in gradients.keys() - others.keys():
                    self._lacks(side, name, gradients[name])

    def _renamed(self, name: str) -> str:
        """Return a parameter's name as the baseline has it."""
        module, _, own = name.rpartition(".")
        return f"{self._modules[module]}.{own}" if module in self._modules else name

    def _lacks(self, side: int, name: str, value: Value) -> None:
        evidence = self._walk.evidence
        place = evidence.place(_last_call(self._walk.ranks[side], value))
        row = Row(None if side else place, place if side else None, "", f"gradient of {name}", "different")
        evidence.rows.append(row)
        where = "baseline" if side else "target"
        evidence.blame("gradient", row, f"{name} has a gradient in the {where} only", "", self._at_end)

    @property
    def _at_end(self) -> tuple[int, int]:
        return self._walk.ranks[0].calls[-1].id + 1, 0

    def _left(self) -> Iterator[End]:
        """Yield what memory that both sides were given holds at the end, where both wrote it."""
        theirs = self._places[1]
        for found in self._places[0].values():
            other = self._partner(0, found.before)
            if other is not None and other.record.place in theirs and self._memory[0].outlives(found):
                yield End("left", "left behind", found.last, theirs[other.record.place].last)

    @cached_property
    def _places(self) -> tuple[dict[tuple[object, ...], LeftPlace], dict[tuple[object, ...], LeftPlace]]:
        one, other = ({place.before.record.place: place for place in memory.places} for memory in self._memory)
        return one, other

    def _partner(self, side: Side, value: Value) -> Value | None:
        """Return the counterpart of what stood somewhere before the step."""
        found = self._walk.from_outside[side]
        seen = (value, *self._walk.flows[side].of_moment(value))
        return next((found[one.record.place] for one in seen if one.record.place in found), None)

    def _left_alone(self) -> None:
        """Report memory from outside that one side alone changes; all that a call writes goes together."""
        found: dict[tuple[Side, int], list[LeftPlace]] = {}
        for side in (0, 1):
            for place in self._memory[side].places:
                other = self._partner(side, place.before)
                if other is None or self._is_written(1 - side, other) or not self._memory[side].is_state(place):
                    continue
                both = (place.last, other) if side == 0 else (other, place.last)
                if not closeness(*both, data=self._read_data).bitwise:
                    found.setdefault((side, place.writer.id), []).append(place)
        for (side, _), places in found.items():
            self._changes_alone(side, places)

    def _is_written(self, side: int, value: Value) -> bool:
        """Return True if a side writes the memory that a value lies in, or makes a tensor like it anew at its end."""
        written = {place.last.storage for place in self._memory[side].places}
        return value.storage in written or value.storage in self._memory[side].flat

    def _changes_alone(self, side: Side, places: list[LeftPlace]) -> None:
        evidence, memory = self._walk.evidence, self._memory[side]
        call = places[0].writer
        place = evidence.place(call)
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        names = ("target", "baseline")
        text = (
            f"only the {names[side]} changes {call.module or call.name}{more}, there before the step; "
            f"the {names[1 - side]} has no such write"
        )
        row = Row(None if side else place, place if side else None, "", "left behind", "different", note=text)
        evidence.rows.append(row)
        if any(map(memory.belongs_to_model, places)):
            evidence.blame("left", row, text, "", self._at_end)

    def _judge(self, end: End) -> None:
        walk = self._walk
        target, baseline = end.target, end.baseline
        close, state = walk.known.close(target, baseline), walk.state(target, baseline)
        pair = Pair(_last_call(walk.ranks[0], target), _last_call(walk.ranks[1], baseline), "order")
        if state is None:
            said, text, behind = walk.compare(target, baseline)
            row = walk.evidence.judged(pair, end.name, close, said)
            if said.status == "unknown":
                self.unknown.append(end.name)
            if said.guilty:
                walk.blame_behind(end.kind, row, f"the {end.name} is not the same: {text}", behind)
        elif state.status == "unknown":
            self.unknown.append(end.name)
            walk.evidence.judged(pair, end.name, close, Judgement("unknown", note=close.reason))
        elif state.status in ("same", "within") and close.nonfinite:
            row = walk.evidence.judged(pair, end.name, close, Judgement("different", True, floor_from="exact"))
            text = f"the {end.name} is not the same: NaN or Inf stand at other places"
            walk.evidence.blame(end.kind, row, text, "", (row.place.id, 1))


def _gradients_of(rank: RankDump) -> dict[str, Value]:
    """Return each parameter's gradient when backward ended, by the parameter's path without wrappers."""
    holders = Holders(rank)
    return {normal_module(name): holders.of(value) for name, value in rank.gradients.items()}


def _last_call(rank: RankDump, value: Value) -> Call:
    # `value.producer` looks for the slot as well, among the thousands of an optimizer's call.
    position = rank.links.producers.get(value.id)
    return rank.calls[-1] if position is None else rank.call_at(position)
