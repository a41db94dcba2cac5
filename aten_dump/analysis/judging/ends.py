"""What a step is for: the losses, the gradients, and what it leaves in memory; each is compared directly.

Theory of operation
    Whatever the pairs of calls say, these must agree: the roots of backward, each parameter's gradient by its name (a
    leaf's without a name where backward reached leaves in another order), the last value of memory that both sides had
    from outside (parameters, buffers, the optimizer's state) or that the optimizer made as its state
    (`left_behind.py`), and what the program took away: what its modules returned for good (`taken_away.py`). Most are
    results of paired calls and known by then; the others are judged by what both programs' calls mean. One side alone
    having a gradient is a finding, and so is memory of the model's that one side alone changes. What may be
    the affair of the program around the model (what a training loop counts) is a difference too, but nobody is accused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final

from ...dump import Call, RankDump, Value
from ...dump.across_ranks.part_holders import Holders
from ..evidence.evidence_rows import Pair, said_of
from ..evidence.findings import Finding, FindingKind, Row
from ..evidence.judgement import Judgement
from ..flow.counterparts import Side
from ..flow.leaves import LeafGradient, named_leaves
from ..flow.left_memory import LeftPlace
from ..flow.odd_calls import odd_call
from ..flow.roots import roots_of, starts_of
from ..outcomes.loss_parts import add_up_to_the_same, is_the_others_sum
from ..pairing.call_keys import normal_module
from .input_links import Link, state_from
from .knowledge import Knowledge
from .left_behind import LeftBehind
from .open_pairs import OpenPairs
from .taken_away import TakenAway

_NONFINITE: Final = Judgement("different", True, floor_from="exact", ratio=math.inf)
_SIDES: Final = ("target", "baseline")
_DROPPED: Final = "one side writes it, the other makes it anew: whether the program keeps that is not recorded"


@dataclass(frozen=True, slots=True)
class End:
    """Something that a step is for, on both sides."""

    kind: FindingKind
    name: str
    target: Value
    baseline: Value
    accuses: bool = True  # that both belong together is certain


class Ends:
    """Compares the ends of two recordings after they were walked."""

    def __init__(self, knows: Knowledge, open_pairs: OpenPairs, aligned: Sequence[Pair] = ()) -> None:
        """Prepare to compare; `aligned` has pairs of calls of every kind."""
        self._knows = knows
        self._losses = roots_of(knows.target), roots_of(knows.baseline)
        self._taken = TakenAway(knows, aligned, self._losses)
        unsure = any(wrote_unseen(rank) for rank in (knows.target, knows.baseline))
        self._left = LeftBehind(knows, self._taken, unsure=unsure)
        self._open_pairs = open_pairs
        self._at_its_end: list[tuple[End, Row, str]] = []  # findings that no calls stand behind
        self.unknown: list[str] = []  # ends that could not be compared
        self._of_nothing: list[str] = []  # losses that both sides made of memory that nothing had written
        self._knows_a_loss = False

    def run(self) -> None:
        for end in (*self._roots(), *self._gradients(), *self._of_leaves(), *self._left_behind(), *self._results()):
            self._judge(end)
        for end in [*self._results_of_calls()]:
            self._judge(end)
        for end in [End("result", *found) for found in self._taken.unclear()]:
            self._is_unclear(end, "one side takes away what the other makes more of")
        for target, baseline in self._left.made_anew:
            name = f"left behind ({self._left.name(0, target)})"
            self._is_unclear(End("left", name, target, baseline), _DROPPED)
        self._blame_ends()
        self._left_alone()
        for lost in self._open_pairs.leaves.lost():
            where = "" if lost.detach is None else f"; {lost.detach.name} takes it there"
            self._lacks(lost.having, _name_of(lost.found), lost.found.gradient, where)
        if self.unknown or not self._knows_a_loss:  # beside other losses schedules of pipelines infer shapes so
            self.unknown = [*self._of_nothing, *self.unknown]

    # -- which they are -------------------------------------------------------------------------------------------

    def _roots(self) -> Iterator[End]:
        several = len(self._losses[0]) > 1
        for number, (target, baseline) in enumerate(self._paired_losses()):
            yield End("loss", f"loss {number}" if several else "loss", target, baseline)

    def _paired_losses(self) -> list[tuple[Value, Value]]:
        """Return which losses belong together: in order, where both sides have as many.

        Else one side calls backward on parts of what the other does: on two losses, on micro-batches. Gradients of
        parts add up, so what has no counterpart has to as well. Two gradients of one tensor may be asked for at once,
        or of its sum, one by one.
        """
        ours, theirs = map(list, self._losses)
        starts = starts_of(self._knows.target), starts_of(self._knows.baseline)
        in_order = zip(ours, theirs, strict=True) if len(ours) == len(theirs) else product(ours, theirs)
        sums = [pair for pair in in_order if is_the_others_sum(*pair, starts)]
        self._knows_a_loss |= bool(sums)
        ours, theirs = ([v for v in self._losses[n] if v.id not in {pair[n].id for pair in sums}] for n in (0, 1))
        if len(ours) == len(theirs):
            return list(zip(ours, theirs, strict=True))
        known = [(t, b) for t in ours for b in theirs if self._knows.wiring.state(t, b) is not None]
        found: list[tuple[Value, Value]] = []
        for target, baseline in known:
            if target in ours and baseline in theirs:
                found.append((target, baseline))
                ours.remove(target)
                theirs.remove(baseline)
        if add_up_to_the_same(ours, theirs):
            self._knows_a_loss = True
            return found
        return [*found, *zip(ours, theirs, strict=False)]

    def _gradients(self) -> Iterator[End]:
        ours, theirs = (gradients_of(rank) for rank in (self._knows.target, self._knows.baseline))
        if not (ours and theirs):
            return
        names = {name: name for name in ours.keys() & theirs.keys()}
        names |= self._renamed(
            {name: value for name, value in ours.items() if name not in theirs},
            {name: value for name, value in theirs.items() if name not in ours},
        )
        for name, other in names.items():
            yield End("gradient", f"gradient of {name}", ours[name], theirs[other])
        for side, alone, known in ((0, ours, names.keys()), (1, theirs, names.values())):
            for name in sorted(alone.keys() - set(known)):
                self._lacks(side, name, alone[name])

    def _renamed(self, ours: dict[str, Value], theirs: dict[str, Value]) -> dict[str, str]:
        """Return which of the parameters of one side that the other does not know by name are which of the other's.

        A module around the model adds to the front of all names; where modules go by other names, counterparts tell:
        the parameters', then the gradients'. What is left is taken in the order of backward where as many of one shape
        are left on both sides: another parameter's gradient is not the same.
        """
        known, leaves = self._knows.known, self._leaves
        found: dict[str, str] = {}
        ways: tuple[Callable[[str, str], bool], ...] = (
            lambda name, other: f".{name}".endswith(f".{other}") or f".{other}".endswith(f".{name}"),
            lambda name, other: (
                name in leaves[0]
                and other in leaves[1]
                and known.class_of(0, leaves[0][name]) == known.class_of(1, leaves[1][other])
            ),
            lambda name, other: known.class_of(0, ours[name]) == known.class_of(1, theirs[other]),
        )
        for is_same in ways:
            pairs = [
                (name, other)
                for name in ours.keys() - found.keys()
                for other in theirs.keys() - set(found.values())
                if is_same(name, other) and ours[name].shape == theirs[other].shape
            ]
            times = [Counter(side) for side in zip(*pairs, strict=True)]
            found |= {name: other for name, other in pairs if times[0][name] == times[1][other] == 1}
        left: dict[tuple[int, ...], tuple[list[str], list[str]]] = {}
        for side, (gradients, taken) in enumerate(((ours, found.keys()), (theirs, set(found.values())))):
            for name in gradients.keys() - taken:
                left.setdefault(tuple(gradients[name].shape), ([], []))[side].append(name)
        for one, other in left.values():
            if len(one) == len(other):
                order = sorted(one, key=list(ours).index), sorted(other, key=list(theirs).index)
                found |= dict(zip(*order, strict=True))
        return found

    @cached_property
    def _leaves(self) -> tuple[dict[str, Value], dict[str, Value]]:
        """The parameters that got a gradient, of both sides, by name."""
        found = map(named_leaves, self._knows.flows, self._knows.links.leaf_gradients)
        ours, theirs = ({normal_module(name): value for name, value in side.items()} for side in found)
        return ours, theirs

    def _lacks(self, side: int, name: str, value: Value, where: str = "") -> None:
        knows = self._knows
        call = _last_call((knows.target, knows.baseline)[side], value)
        place = knows.evidence.place(call)
        row = Row(None if side else place, place if side else None, "", f"gradient of {name}", "different")
        knows.evidence.rows.append(row)
        text = f"{name} has a gradient in the {_SIDES[side]} only{where}"
        knows.evidence.blame("gradient", row, text, "", (knows.target.calls[-1].id + 1, 0))

    def _of_leaves(self) -> Iterator[End]:
        for target, baseline in self._open_pairs.leaves.pairs():
            yield End("gradient", f"gradient of {_name_of(target)}", target.gradient, baseline.gradient)

    def _left_behind(self) -> Iterator[End]:
        yield from (End("left", "left behind", *pair) for pair in self._left.pairs())

    def _results(self) -> Iterator[End]:
        yield from (End("result", *found) for found in self._taken.of_modules())

    def _results_of_calls(self) -> Iterator[End]:
        yield from (End("result", *found, accuses=False) for found in self._taken.of_calls())

    def _left_alone(self) -> None:
        """Report the memory from outside that one side alone changes; all that a call writes goes together."""
        found: dict[tuple[Side, int], list[LeftPlace]] = {}
        for side, place in self._left.alone():
            found.setdefault((side, place.writer.id), []).append(place)
        for (side, _), places in found.items():
            self._changes_alone(side, places)

    def _changes_alone(self, side: Side, places: Sequence[LeftPlace]) -> None:
        knows = self._knows
        call = places[0].writer
        place = knows.evidence.place(call)
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        name, other = f"{self._left.name(side, places[0].last)}{more}", _SIDES[1 - side]
        text = f"only the {_SIDES[side]} changes {name}, there before the step; the {other} has no such write"
        row = Row(None if side else place, place if side else None, "", "left behind", "different", note=text)
        knows.evidence.rows.append(row)
        if any(self._left.belongs_to_model(side, place) for place in places):
            knows.evidence.blame("left", row, text, "", (knows.target.calls[-1].id + 1, 1))

    # -- whether they agree -----------------------------------------------------------------------------------------

    def _judge(self, end: End) -> None:
        knows = self._knows
        target, baseline = end.target, end.baseline
        close = knows.known.close(target, baseline)
        pair = self._pair(end)
        state = None if target.undefined or baseline.undefined else knows.wiring.state(target, baseline)
        if state is None and not (target.undefined or baseline.undefined or target.unsettled or baseline.unsettled):
            link = Link(end.name, target, baseline, close)
            self._open_pairs.settle(pair, link)
            assert link.said is not None
            state = state_from(link.said, close)
            knows.known.keep(target, baseline, state)
            row = knows.evidence.judged(pair, end.name, close, link.said)
            if link.said.guilty and end.accuses:
                self._blame(end, row, link)
        elif state is not None and end.accuses and close.nonfinite and state.status in ("same", "within"):
            self._blame_nonfinite(end, knows.evidence.judged(pair, end.name, close, _NONFINITE))
        if state is None or state.status == "unknown":
            is_of_nothing = end.kind == "loss" and state is not None and state.undefined
            if end.accuses:
                (self._of_nothing if is_of_nothing else self.unknown).append(end.name)
            knows.evidence.judged(pair, end.name, close, Judgement("unknown", note=close.reason))
        elif end.kind == "loss":
            self._knows_a_loss = True

    def _is_unclear(self, end: End, why: str) -> None:
        """Note an end of which nobody knows whether it is one, or whether the program keeps it."""
        close = self._knows.known.close(end.target, end.baseline)
        said = Judgement("unknown", note=why)
        self.unknown.append(end.name)
        self._knows.evidence.judged(self._pair(end), end.name, close, said)

    def _blame_nonfinite(self, end: End, row: Row) -> None:
        """Add the finding that NaN or Inf stand at other places, though each op was right for what it was given."""
        rows = [row for row in self._knows.evidence.rows if row.closeness is not None and row.closeness.nonfinite]
        first = min(rows, key=lambda row: row.place.id, default=row).place.call
        text = f"the {end.name} is not the same: NaN or Inf stand at other places, as they first do at {first}"
        self._knows.evidence.blame(end.kind, row, text, "", (row.place.id, 1))

    def _blame(self, end: End, row: Row, link: Link) -> None:
        knows = self._knows
        text = f"the {end.name} is not the same: {link.text}" if end.kind != "left" else link.text
        cones = link.cones
        if cones is not None and (cones[0].pieces or cones[1].pieces):
            calls = [call for cone in cones for call in cone.calls]
            known = said_of(knows.cut_inputs(cones[0]))
            kind: FindingKind = "region" if end.kind == "left" else end.kind
            seen_as = Finding(kind, row, text, known, (row.place.id, 1))
            knows.evidence.blame_region(seen_as, odd_call(cones, knows.flows, knows.known), calls)
        else:
            self._at_its_end.append((end, row, text))

    def _blame_ends(self) -> None:
        """Add the findings about ends that no calls stand behind, when all ends are known."""
        knows = self._knows
        for end, row, text in self._at_its_end:
            is_other = end.kind == "left" and self._left.have_others(end.target, end.baseline)
            read = self._left.read_as_one(end.target, end.baseline) if is_other else None
            if is_other and read is None:
                rows = knows.evidence.rows
                number = next(number for number, other in enumerate(rows) if other is row)
                rows[number] = replace(row, status="unknown", note="each of both places has another counterpart")
                continue
            if read is not None:
                pair, slot = read
                there = knows.evidence.place(pair.target), knows.evidence.place(pair.baseline)
                names = self._left.name(0, end.target), self._left.name(1, end.baseline)
                why = f"it reads {names[0]}, in the baseline {names[1]} of another place, which held the same"
                at = replace(row, target=there[0], baseline=there[1], slot=slot)
                knows.evidence.blame("source", at, why, "", (pair.target.id, 0))
                continue
            # What made it is right; that the other side wrote it later, and who did, shows where the step ends.
            last = knows.target.calls[-1].id if end.kind == "left" else row.place.id
            knows.evidence.blame(end.kind, row, text, "", (last, 1))

    def _pair(self, end: End) -> Pair:
        calls = [
            _last_call(rank, value)
            for rank, value in zip((self._knows.target, self._knows.baseline), (end.target, end.baseline), strict=True)
        ]
        return Pair(calls[0], calls[1], "order")


def gradients_of(rank: RankDump) -> dict[str, Value]:
    """Return each parameter's gradient when backward ended, by the parameter's path without wrappers."""
    holders = Holders(rank)
    return {normal_module(name): holders.of(value) for name, value in rank.gradients.items()}


def wrote_unseen(rank: RankDump) -> bool:
    """Tell whether callbacks ran that nobody saw: memory may hold something else than was last seen there."""
    return any(note.code == "unseen" for note in rank.notes)


def _name_of(found: LeafGradient) -> str:
    """Return what to call a leaf that has no name."""
    call, slot = found.leaf.producer or found.leaf.consumers[0]
    return f"{call.name}.{slot}"


def _last_call(rank: RankDump, value: Value) -> Call:
    # `value.producer` looks for the slot as well, among the thousands of an optimizer's call.
    position = rank.links.producers.get(value.id)
    return rank.calls[-1] if position is None else rank.call_at(position)
