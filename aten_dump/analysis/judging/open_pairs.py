"""Pairs of calls of which it is not known that both are given the same, or whose arguments differ.

Theory of operation
    What stands at an input is compared by its meaning, in float64 (`regions.py`). Where that differs there are three
    cases. What the calls themselves make of it means the same: then it did not matter. Or the two calls are no pair:
    ``(q * s) @ k`` stands against ``(q @ k) * s``; then what later calls make of both, or the loss, means the same, and
    the pair is given up. Or neither: the difference is one of the programs', and it begins here. So it is with calls
    that are given the same and have other arguments, but of these each result that differs has to meet again, and
    none may stay in memory from outside: a batch norm's statistics do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Final

from ...dump import Call, Value
from ...store.op_names import is_workspace, reads_no_elements
from ..distance.float64_results import SAME_NORM
from ..distance.value_distance import is_of_other_numbers
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Status
from ..evidence.judgement import Judgement
from ..evidence.states import State
from ..flow.argument_differences import ArgumentDifference
from ..flow.data_flow import DataFlow
from ..flow.regions import Meaning, Verdict
from ..outcomes.loss_parts import LossParts
from ..outcomes.region_differences import Accused, region_text
from ..outcomes.updates import Updates
from ..rerun.shared_memory import moment_of
from .estimates import distance, error_within
from .input_links import Link, open_links, state_from
from .knowledge import Knowledge
from .leaf_gradients import LeafGradients
from .sources import records_all_ops

_Pairs = Sequence[tuple[Value, Value]]
_MOST_AHEAD: Final = 120  # calls of the target, of what comes of a pair, that are looked at for where two ways meet
_MOST_TRIED: Final = 8  # pairs among them that are run
_TRIED_AGAIN: Final = 2  # where an earlier layer has the same difference, and it was a finding
_MOST_RESULTS: Final = 8  # of a pair, each of which has to meet


class OpenPairs:
    """Resolves pairs; `cleared` has the ids of target calls that belong to regions which mean the same."""

    def __init__(self, knows: Knowledge, ends: _Pairs = (), parts: LossParts | None = None) -> None:
        """Prepare to resolve; `ends` are losses and gradients of both sides, where ways may meet as well."""
        self._knows = knows
        self._ends = ends
        self._parts = parts or LossParts(knows.flows)
        self.cleared: set[int] = set()
        self.accused = Accused()
        self.leaves = LeafGradients(knows)
        self._updates = Updates(knows.flows, knows.known, knows.regions)

    def resolve(self, pair: Pair, links: list[Link], differences: list[ArgumentDifference]) -> bool:
        """Settle the open inputs of a pair, and drop the differences that make no difference.

        Returns:
            False if the pair turned out to be none.
        """
        if self._parts.are_read_by(pair.target, pair.baseline) or self._is_shaped_otherwise(pair, links, differences):
            return False
        if pair.how != "mapping" and self.leaves.is_crossed(pair.target, pair.baseline):
            return False
        for link in list(open_links(links)):
            self._by_rule_or_meaning(pair, link)
        if not (left := list(open_links(links))) and not differences:
            return True
        if self._same_function(pair):
            differences.clear()
            for link in left:
                link.state = State("within", link.close.error or 0.0)
            return True
        regions = [link.cones for link in left if link.cones is not None]
        most = _TRIED_AGAIN if self.accused.has(pair.target, differences, regions) else _MOST_TRIED
        if pair.how != "mapping" and self._is_none(pair, left, most):
            return False
        if left:
            self.accused.add(pair.target, differences, regions)
        for link in left:
            self._differs(link)
        return True

    def _is_shaped_otherwise(self, pair: Pair, links: list[Link], differences: list[ArgumentDifference]) -> bool:
        """Tell whether a pair that alignment knew by its op alone works on, or asks for, other shapes: then it is none.

        Who reads what the calls made is asked instead. So it is with any pair of which one call works on, or makes,
        complex numbers and the other real ones, or one integers, which wrap around, and the other (equal) floats.
        """
        of_other_numbers = any(is_of_other_numbers(link.close) for link in links) or self._makes_other_numbers(pair)
        if of_other_numbers and pair.how != "mapping":
            return True
        if pair.how not in ("order", "shapeless"):
            return False
        if any(link.close.shape is not None for link in open_links(links)):
            return True
        found = self._knows.results(pair.target, pair.baseline)
        return bool(differences) and any(t.shape != b.shape for t, b in found.values())

    def _makes_other_numbers(self, pair: Pair) -> bool:
        found = self._knows.results(pair.target, pair.baseline).values()
        return any(is_of_other_numbers(self._knows.known.close(*both)) for both in found)

    def settle(self, pair: Pair, link: Link) -> None:
        """Settle an input by itself, whatever is made of it."""
        self._by_rule_or_meaning(pair, link)
        if link.state is None:
            self._differs(link)

    def _by_rule_or_meaning(self, pair: Pair, link: Link) -> None:
        said = self._knows.judge.rule(pair.target, link.slot, link.close)
        if said is not None:
            link.said, link.text, link.state = said, said.note, state_from(said, link.close)
            return
        meaning = self._knows.regions.compare([link.target], [link.baseline])
        link.cones = meaning.cones
        if not self._all_recorded and not any(cone.pieces for cone in meaning.cones or ()):
            self._estimated(link, replace(meaning, why="the ops that made it were not recorded"))
        elif meaning.verdict == "same":
            self._same(link, meaning)
        elif meaning.verdict == "unknown":
            self._estimated(link, meaning)
        elif not self._makers_are_told:
            self._estimated(link, replace(meaning, why="one of the dumps does not tell which call made it"))

    @cached_property
    def _makers_are_told(self) -> bool:
        """Whether on both sides any call reads what another made: other tools do not record which tensors are one."""
        flows = self._knows.flows
        return all(any(flow.maker(v) for call in flow.calls() for _, v in flow.reads(call)) for flow in flows)

    @cached_property
    def _all_recorded(self) -> bool:
        """Whether both sides have all ops of the step: else what none of them made is no value from outside."""
        return records_all_ops(self._knows.target) and records_all_ops(self._knows.baseline)

    def _same(self, link: Link, meaning: Meaning) -> None:
        """Settle an input whose region means the same, unless a call in it is wrong."""
        assert meaning.cones is not None
        wrong = self._knows.wrong_in(meaning.cones)
        if wrong is None:
            inputs = self._knows.cut_inputs(meaning.cones[0])
            status = "within" if inputs.agree else inputs.worst
            link.said = Judgement(status, floor=SAME_NORM, floor_from="semantics", ratio=0.0)
            link.state = state_from(link.said, link.close, inputs.depth + 1)
        else:
            link.said = Judgement("different", True, None, "replay", 2.0)
            link.text = f"{region_text(meaning)}; {wrong[2]}"
            link.state = state_from(link.said, link.close)
        self._knows.note_region(meaning.cones, link.said.status, proven=wrong is None and not meaning.estimated)

    def _estimated(self, link: Link, meaning: Meaning) -> None:
        """Judge an input by its distance, as its region cannot be run."""
        assert meaning.cones is not None
        close = link.close
        inputs = self._knows.cut_inputs(meaning.cones[0])
        calls = sum(len(cone.pieces) for cone in meaning.cones)
        if not close.known:
            link.said = Judgement("unknown", note=close.reason)
        elif close.level == "hash" or not link.baseline.is_floating:
            wrong = inputs.worst == "same" or (inputs.agree and close.level != "hash" and calls < 1)
            link.said = Judgement("different", wrong, 0.0, "exact", math.inf, note=meaning.why)
        else:
            depth = max(inputs.depth, 0 if calls else self._knows.known.depth)
            error = error_within(meaning.cones, inputs.error)
            limit, ratio = distance(link.target, link.baseline, close, calls + depth, error)
            status: Status = "different" if ratio > 1 else "within"
            link.said = Judgement(status, ratio > 1 and inputs.agree, limit, "depth", ratio, note=meaning.why)
        link.text = region_text(meaning)
        link.state = state_from(link.said, close, inputs.depth + 1)
        self._knows.note_region(meaning.cones, link.said.status, proven=False)

    def _differs(self, link: Link) -> None:
        meaning = self._knows.regions.compare([link.target], [link.baseline])
        assert meaning.cones is not None
        link.said = Judgement("different", True, SAME_NORM, "semantics", max(2.0, meaning.error / SAME_NORM))
        link.text = region_text(meaning)
        if math.isfinite(meaning.error):
            link.text += f"; in float64 from the same values they differ by {meaning.error:.3g} (relative L2)"
        link.state = state_from(link.said, link.close)
        self._knows.note_region(meaning.cones, "different", proven=False)

    def _same_function(self, pair: Pair) -> bool:
        """Tell whether what both calls make means the same, whatever they were given."""
        found = self._knows.results(pair.target, pair.baseline)
        data = [both for slot, both in found.items() if not is_workspace(pair.target.op, slot)]
        if not data or len(found) < len(self._knows.flows[0].results(pair.target)):
            return False
        values = [list(side) for side in zip(*data, strict=True)]
        return self._knows.regions.compare(values[0], values[1]).verdict == "same"

    def _is_none(self, pair: Pair, left: Sequence[Link], most: int) -> bool:
        """Tell whether calls are no pair: given other things, one result meets later; given the same, all that differ.

        A batch norm with another momentum has the right result, and leaves other statistics behind.
        """
        if left:
            results = [value for _, value in self._knows.flows[0].results(pair.target)]
            met = "same" if pair.target.id in self.cleared else self._meets_later(pair, results, most)
            if met == "same" or self._clear(self._updates.meet(pair.target)):
                return True
            # Of a micro-batch, whose gradients are not the batch's: their sum, too large a region to run, is an end.
            return met == "unknown" and self._parts.exist and pair.target.phase == "backward"
        unlike = self._unlike(pair)
        if not unlike or any(self._outlives(pair.target, value) for value in unlike):
            return False
        return all(self._meets_later(pair, [value], most) == "same" for value in unlike)

    def _outlives(self, call: Call, result: Value) -> bool:
        """Tell whether a call wrote a result to memory from outside: it is there when the step has ended."""
        flow = self._knows.flows[0]
        return any(flow.maker(value) is None for value in flow.before(call, result))

    def _meets_later(self, pair: Pair, results: Sequence[Value], most: int) -> Verdict:
        """Tell whether what later calls make of one of these means the same; then note the calls up to there.

        Args:
            pair: the calls.
            results: some of what the target's made.
            most: of what comes of them is run, from the nearest.
        """
        found: Verdict = "differs"
        made = islice(self._later(pair, results, most, given=False), most + most // 4)
        for values in chain(made, islice(self._later(pair, results, most, given=True), most)):
            meaning = self._knows.regions.compare(*values)
            if meaning.verdict == "same" and self._clear([meaning]):
                return "same"
            found = "unknown" if meaning.verdict == "unknown" else found
        return found

    def _clear(self, meanings: Sequence[Meaning]) -> bool:
        """Note the calls of regions that mean the same; tell whether there are any."""
        found = [(meaning, meaning.cones) for meaning in meanings if meaning.cones is not None]
        for meaning, cones in found:
            self.cleared |= {call.id for call in cones[0].calls}
            self._knows.note_region(cones, "within", proven=not meaning.estimated)
        return bool(found)

    def _unlike(self, pair: Pair) -> list[Value]:
        """Return the results of the target's call that do not mean what the baseline's do; none if they are many."""
        compare, results = self._knows.regions.compare, self._knows.results(pair.target, pair.baseline)
        found = [both for slot, both in results.items() if not is_workspace(pair.target.op, slot)]
        if len(found) > _MOST_RESULTS:
            return []
        return [target for target, baseline in found if compare([target], [baseline]).verdict != "same"]

    def _later(
        self, pair: Pair, results: Sequence[Value], most: int, *, given: bool
    ) -> Iterator[tuple[list[Value], list[Value]]]:
        """Yield what comes of results on both sides: what pairs of later calls make, in order, and ends.

        Args:
            pair: the calls.
            results: some of what the target's made.
            most: after so many only what joins two that come of them: the terms of a gradient by themselves may differ.
            given: yield what pairs of later calls are given in place of what they make. The baseline's need not come of
                its call: where it means what comes of the target's, that call is no partner.
        """
        flow, pairs = self._knows.flows[0], self._knows.wiring.pairs
        ours: set[int] = set()
        first = {value.id for value in results} | {moment_of(value) for value in results if value.storage}
        by_numbers = any(self._goes_on(pair.target, value) for value in results)

        def comes_of_it(value: Value) -> bool:
            if by_numbers and not value.is_floating:
                return False  # an index or a mask is the same of much that is not
            writer = flow.writer(value)
            return value.id in first or moment_of(value) in first or (writer is not None and writer[0].id in ours)

        waiting = [call.id for call in flow.readers(pair.target)]
        heapify(waiting)
        for number in islice(_ascending(waiting), _MOST_AHEAD):
            call = self._knows.target.call(number)
            if reads_no_elements(call.op) or not (terms := {v.id for _, v in flow.reads(call) if comes_of_it(v)}):
                continue
            ours.add(number)
            for reader in flow.readers(call):
                heappush(waiting, reader.id)
            partner = pairs.get(number)
            if partner is None:
                continue
            if given:
                for target, baseline in _read_by(self._knows.flows, call, partner).values():
                    if comes_of_it(target) and _could_tell([target], [baseline]):
                        yield [target], [baseline]
                continue
            if call.phase == "optimizer":
                continue  # a step of Adam is nearly the same for a gradient of another scale
            values = self._made_by(call, partner)
            is_near = most > 0 or len(terms) > 1
            if is_near and _could_tell(*values) and _comes_of(self._knows, values[1], pair.baseline):
                most -= 1
                yield values
        for end, other in () if given else self._ends:
            if comes_of_it(end) and _comes_of(self._knows, [other], pair.baseline):
                yield [end], [other]

    def _made_by(self, call: Call, partner: Call) -> tuple[list[Value], list[Value]]:
        """Return what both calls of a pair make, or read where they make nothing."""
        found = self._knows.results(call, partner) or _read_by(self._knows.flows, call, partner)
        return [target for target, _ in found.values()], [baseline for _, baseline in found.values()]

    def _goes_on(self, call: Call, result: Value) -> bool:
        """Tell whether later calls of the target make numbers of the numbers in a result."""
        flow = self._knows.flows[0]
        if not result.is_floating:
            return False
        readers = (later for later in flow.readers(call) if not reads_no_elements(later.op))
        readers = (later for later in readers if any(_is_of(result, value) for _, value in flow.reads(later)))
        return any(value.is_floating for later in readers for _, value in flow.results(later))


def _read_by(flows: tuple[DataFlow, DataFlow], target: Call, baseline: Call) -> dict[str, tuple[Value, Value]]:
    """Return what both calls read, by slot."""
    theirs = dict(flows[1].reads(baseline))
    return {slot: (v, theirs[slot]) for slot, v in flows[0].reads(target) if slot in theirs}


def _comes_of(knows: Knowledge, values: list[Value], origin: Call) -> bool:
    """Tell whether what has no counterpart behind the baseline's values begins at a call."""
    return any(maker.id == origin.id for maker in knows.regions.cone(1, values).calls)


def _ascending(waiting: list[int]) -> Iterator[int]:
    """Take numbers off a heap, each once, while others are put on it."""
    last = -1
    while waiting:
        number = heappop(waiting)
        if number != last:
            yield number
        last = number


def _is_of(result: Value, value: Value) -> bool:
    """Tell whether a value is a result, or a view of it."""
    return value.id == result.id or (result.storage != 0 and moment_of(value) == moment_of(result))


def _could_tell(targets: list[Value], baselines: list[Value]) -> bool:
    """Tell whether results can show that ways met: a mask or an index may be the same of what is not."""
    both = zip(targets, baselines, strict=True)
    return all(t.shape == b.shape for t, b in both) and any(t.is_floating for t in targets)
