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
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from typing import Final

from ...dump import Call, Value
from ...store.op_names import is_workspace
from ..distance.float64_results import SAME_NORM
from ..distance.value_distance import has_equal_statistics, is_of_other_numbers
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Status
from ..evidence.judgement import Judgement
from ..evidence.noise_floors import distance
from ..evidence.states import State
from ..flow.argument_differences import ArgumentDifference, may_move
from ..flow.regions import Meaning, Verdict
from ..outcomes.later_calls import LaterCalls
from ..outcomes.loss_parts import LossParts
from ..outcomes.region_differences import Accused, region_text
from ..outcomes.statistics_alone import Statistics, shows_equality
from ..outcomes.updates import Updates
from ..tasks import records_all_ops
from .estimates import error_within
from .input_links import Link, open_links, state_from
from .knowledge import Knowledge
from .leaf_gradients import LeafGradients

_Pairs = Sequence[tuple[Value, Value]]
_MOST_TRIED: Final = 8  # pairs among them that are run
_TRIED_AGAIN: Final = 2  # where an earlier layer has the same difference, and it was a finding
_MOST_ENDS: Final = 2  # that come of a pair, and are run if nothing nearer meets
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
        self._later = LaterCalls(knows.flows, knows.wiring, knows.regions, ends)
        self._statistics = Statistics(knows.flows, knows.known, ends)
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
        if self._same_function(pair) or (not left and self._makes_equal(pair, differences)):
            differences.clear()
            for link in left:
                link.state = State("within", link.close.error or 0.0)
            return True
        regions = [link.cones for link in left if link.cones is not None]
        most = _TRIED_AGAIN if self.accused.has(pair.target, differences, regions) else _MOST_TRIED
        if pair.how != "mapping" and self._is_none(pair, left, most, exact=not all(map(may_move, differences))):
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
        elif close.level == "hash" or not (link.baseline.is_floating or has_equal_statistics(close)):
            is_known = close.level != "hash" and (calls < 1 or (close.level == "statistic" and not inputs.error))
            wrong = inputs.worst == "same" or (inputs.agree and is_known)
            link.said = Judgement("different", wrong, 0.0, "exact", math.inf, note=meaning.why)
        else:
            depth = max(inputs.depth, 0 if calls else self._knows.known.depth)
            error = error_within(meaning.cones, inputs.error)
            limit, ratio = distance(link.target, link.baseline, close, calls + depth, error)
            times = self._statistics.times_cancelled(link.target, link.baseline) if ratio > 1 else 1.0
            limit, ratio = limit * times, ratio / times
            status: Status = "different" if ratio > 1 else "within"
            link.said = Judgement(status, ratio > 1 and inputs.agree, limit, "depth", ratio, note=meaning.why)
        link.text = region_text(meaning)
        if link.said.guilty and close.level == "statistic" and link.baseline.is_floating:
            return  # it may be another number there, of which both sides make the same: that is asked first
        self._accept(link, meaning)

    def _accept(self, link: Link, meaning: Meaning) -> None:
        """Take an estimate for what is known of an input."""
        assert meaning.cones is not None
        assert link.said is not None
        link.state = state_from(link.said, link.close, self._knows.cut_inputs(meaning.cones[0]).depth + 1)
        self._knows.note_region(meaning.cones, link.said.status, proven=False)

    def _differs(self, link: Link) -> None:
        meaning = self._knows.regions.compare([link.target], [link.baseline])
        assert meaning.cones is not None
        if link.said is not None:
            self._accept(link, meaning)
            return
        link.said = Judgement("different", True, SAME_NORM, "semantics", max(2.0, meaning.error / SAME_NORM))
        link.text = region_text(meaning)
        if math.isfinite(meaning.error):
            link.text += f"; in float64 from the same values they differ by {meaning.error:.3g} (relative L2)"
        link.state = state_from(link.said, link.close)
        self._knows.note_region(meaning.cones, "different", proven=False)

    def _same_function(self, pair: Pair) -> bool:
        """Tell whether what both calls make means the same, whatever they were given."""
        found = self._knows.results(pair.target, pair.baseline)
        data = [found[slot] for slot in self._results_of(pair)]
        if not data:
            return False
        values = [list(side) for side in zip(*data, strict=True)]
        return self._knows.regions.compare(values[0], values[1]).verdict == "same"

    def _makes_equal(self, pair: Pair, differences: list[ArgumentDifference]) -> bool:
        """Tell whether statistics show that other arguments made no difference: all that both made has equal ones."""
        found = [self._knows.compared(pair.target, pair.baseline)[slot] for slot in self._results_of(pair)]
        return bool(found) and not any(map(may_move, differences)) and all(map(shows_equality, found))

    def _results_of(self, pair: Pair) -> list[str]:
        """Return the slots of what both calls made; none if one of them made more."""
        found = self._knows.results(pair.target, pair.baseline)
        is_all = len(found) == len(self._knows.flows[0].results(pair.target))
        return [slot for slot in found if not is_workspace(pair.target.op, slot)] if is_all else []

    def _is_none(self, pair: Pair, left: Sequence[Link], most: int, *, exact: bool) -> bool:
        """Tell whether calls are no pair: given other things, one result meets later; given the same, all that differ.

        A batch norm with another momentum has the right result, and leaves other statistics behind.
        """
        if left:
            results = [value for _, value in self._knows.flows[0].results(pair.target)]
            ends = _MOST_ENDS if most == _MOST_TRIED else 0
            met = "same" if pair.target.id in self.cleared else self._meets_later(pair, results, most, most_ends=ends)
            if met == "same" or self._clear(self._updates.meet(pair.target)):
                return True
            # Of a micro-batch, whose gradients are not the batch's: their sum, too large a region to run, is an end.
            return met == "unknown" and self._parts.exist and pair.target.phase == "backward"
        unlike = self._unlike(pair)
        if not unlike or any(self._outlives(pair.target, value) for value in unlike):
            return False
        return all(self._meets_later(pair, [value], most, exact=exact) == "same" for value in unlike)

    def _outlives(self, call: Call, result: Value) -> bool:
        """Tell whether a call wrote a result to memory from outside: it is there when the step has ended."""
        flow = self._knows.flows[0]
        return any(flow.maker(value) is None for value in flow.before(call, result))

    def _meets_later(
        self, pair: Pair, results: Sequence[Value], most: int, *, most_ends: int = 0, exact: bool = False
    ) -> Verdict:
        """Tell whether what later calls make of one of these means the same; then note the calls up to there.

        Args:
            pair: the calls.
            results: some of what the target's made.
            most: of what comes of them is run, from the nearest.
            most_ends: of losses and gradients behind both calls, last; each has to mean the same. A loss forgives other
                arguments (positions that are all off by one, where only their distance counts): these meet sooner.
            exact: where statistics alone tell, they have to be equal to the last digit.
        """
        found: Verdict = "differs"
        made = islice(self._later.of(pair, results, most, given=False), most + most // 4)
        given = islice(self._later.of(pair, results, most, given=True), most)
        for values in chain(made, given):
            meaning = self._knows.regions.compare(*values)
            if meaning.verdict == "unknown" and self._statistics.agree(*values, exact=exact):
                meaning = replace(meaning, verdict="same", estimated=True)
            if meaning.verdict == "same" and self._clear([meaning]):
                return "same"
            found = "unknown" if meaning.verdict == "unknown" else found
        ends = [self._knows.regions.compare(*both) for both in islice(self._later.ends_behind(pair), most_ends)]
        is_met = all(meaning.verdict == "same" for meaning in ends)
        return "same" if is_met and self._clear(ends) else found

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
