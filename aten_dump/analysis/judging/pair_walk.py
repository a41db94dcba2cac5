"""Walk two aligned recordings in execution order and prove, pair by pair, that both compute the same.

Theory of operation
    Of a pair of calls four things are asked: is each input the same thing on both sides (made by paired calls, seen
    through the same view, or the same from outside: `wiring.py`, `sources.py`); are the arguments the same; is the
    result of each side right for what that side was given (`result_judge.py`). If all hold, both results are the same
    thing, whatever noise is between their numbers, and the next pair can stand on it. Where the programs are written
    otherwise, regions of calls are compared by what they mean (`open_pairs.py`). The first pair at which one of these
    does not hold is the cause; behind it the walk goes on as if it were right, so that every finding stands on its own.

    Alignment proposes the pairs, data flow decides: calls that are given the same, and are the same op, are a pair even
    where alignment thought otherwise (buckets that came in another order). Only one kind of call is walked: aten ops
    where both sides have them. Calls of the other kinds get rows from the states that were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ...dump import Call
from ...store.op_names import is_workspace
from ..distance.value_distance import Closeness, is_of_other_numbers
from ..evidence.evidence_rows import Pair, said_of
from ..evidence.findings import Finding, FindingKind, Row
from ..evidence.judgement import Compared, Judgement
from ..evidence.noise_floors import distance
from ..evidence.states import Inputs
from ..flow.argument_differences import ArgumentDifference
from ..flow.counterparts import NOT_TOLD, Side
from ..flow.flat_memory import has_parts
from ..flow.odd_calls import odd_call
from ..flow.read_numbers import COMPUTED
from ..flow.roots import roots_of
from ..outcomes.list_orders import in_another_order
from ..outcomes.loss_parts import LossParts
from ..outcomes.updates import pair_of_state
from .ends import Ends, gradients_of
from .input_links import Link, inputs_from, is_another_source, is_shaped_otherwise, is_unsettled, open_links, state_from
from .knowledge import Knowledge
from .open_pairs import OpenPairs
from .result_judge import OTHER_DRAWS

_MOST_ALIKE: Final = 64  # results that nobody reads, among which the nearest is looked for
_MOST_FROM_OUTSIDE: Final = 4  # of what a call reads, whose counterparts' readers are looked at


class Walk:
    """Walks the pairs of one step and rank; what it finds is in ``knows.evidence`` and ``knows.proofs``."""

    def __init__(self, knows: Knowledge) -> None:
        self.knows = knows
        self.given_up: set[int] = set()  # ids of target calls whose pairs turned out to be none
        self.found_by_flow: list[Pair] = []
        self._taken: set[int] = set()  # ids of the baseline's calls that were walked
        self._by_op: tuple[dict[tuple[str, str], list[Call]], ...] = {}, {}
        self._not_told: list[tuple[Call, str]] = []  # results of which it is not known what in them is undefined

    def run(self, primary: Sequence[Pair], aligned: Sequence[Pair] = ()) -> None:
        """Walk pairs of the kind that is judged, in execution order; `aligned` has those of other kinds too."""
        self._aligned = aligned
        self.knows.links.set_aligned(aligned)
        self.knows.links.note_precisions(primary)
        self.given_up |= in_another_order(primary, self.knows.flows, self.knows.links.leaf_gradients)
        self._pairs = pairs = {pair.target.id: pair for pair in primary if pair.target.id not in self.given_up}
        self.knows.wiring.pairs = {number: pair.baseline for number, pair in pairs.items()}
        sides = self.knows.target, self.knows.baseline
        losses = roots_of(sides[0]), roots_of(sides[1])
        ours, theirs = map(gradients_of, sides)
        ends = [*zip(*losses, strict=False), *((ours[n], theirs[n]) for n in ours if n in theirs)]
        self._open_pairs = OpenPairs(self.knows, ends, LossParts(self.knows.flows, losses))
        for call in self.knows.flows[0].calls():
            pair = aligned_pair = pairs.get(call.id)
            state_of = pair_of_state(call, self.knows.known, self._taken)
            if state_of is not None and (pair is None or pair.baseline is not state_of):
                pair = self._found(call, state_of)
            elif pair is None or pair.baseline.id in self._taken:
                is_update = call.phase == "optimizer" and bool(call.mutated)  # the memory that it writes tells which
                from_outside = aligned_pair is not None or (is_update and sides[0] is not sides[1])
                pair = self._paired_by_flow(call, from_outside=from_outside)
                if pair is None and aligned_pair is not None:
                    pair = self._paired_by_results(call)
            if pair is not None:
                self._pair(pair)

    def ends(self) -> list[str]:
        """Judge what both steps are for (`ends.py`); return the names of what nobody knows.

        So are results that nobody reads, where it cannot be told what in them depends on memory that nothing had
        written.
        """
        ends = Ends(self.knows, self._open_pairs, self._aligned)
        ends.run()
        readers = self.knows.flows[0].readers
        return [*ends.unknown, *(f"{call.name}.{slot}" for call, slot in self._not_told if not readers(call))]

    # -- one pair -----------------------------------------------------------------------------------------------

    def _pair(self, pair: Pair) -> None:
        flows = self.knows.flows
        if flows[0].is_view(pair.target) or flows[1].is_view(pair.baseline):
            self._view(pair)
            return
        links = self.knows.links.of(pair)
        if any(link.close.shape and has_parts(link.target) != has_parts(link.baseline) for link in links):
            self._give_up(pair)  # one works on many parameters, the other on one of them
            return
        if any(map(is_shaped_otherwise, links)):
            self._give_up(pair)  # what both make has other shapes, too: what comes of it is asked
            return
        is_other = any(map(is_another_source, links))
        if is_other or any(open_links(links)):
            better = self._paired_by_flow(pair.target, from_outside=is_other)
            better = better or self._paired_by_results(pair.target, pair.baseline)
            if better is not None:
                pair, links = better, self.knows.links.of(better)
            elif self._belongs_to_later(pair):
                self._give_up(pair)
                return
        results = self.knows.compared(pair.target, pair.baseline)
        differences = self.knows.differences(pair.target, pair.baseline)
        data = [close for slot, (_, _, close) in results.items() if not is_workspace(pair.target.op, slot)]
        is_equal = bool(data) and all(close.bitwise and not is_of_other_numbers(close) for close in data)
        closes = [*data, *(link.close for link in links)]
        is_open = bool(differences) or any(open_links(links)) or any(map(is_of_other_numbers, closes))
        if is_open and not is_equal and not self._open_pairs.resolve(pair, links, differences):
            self._give_up(pair)
            return
        self._taken.add(pair.baseline.id)
        self._add_links(pair, links)
        self._add_results(pair, links, results, differences)

    def _give_up(self, pair: Pair) -> None:
        self.given_up.add(pair.target.id)
        self.knows.wiring.pairs.pop(pair.target.id, None)

    def _view(self, pair: Pair) -> None:
        """Hand on what is known to the views of it; where that cannot be told, who reads the view is asked."""
        links = self.knows.links.of(pair)
        is_other = any(map(is_another_source, links))
        better = self._paired_by_flow(pair.target, from_outside=True) if is_other else None
        if better is not None:
            pair, links = better, self.knows.links.of(better)
        elif is_other and pair.how in ("order", "shapeless") and any(link.close.shape is not None for link in links):
            self._give_up(pair)  # known by its op alone: a parameter's view and one of an index
            if pair.target.parent is not None and pair.target.parent.kind == "api":
                self.given_up.add(pair.target.parent_id)
            return
        if any(open_links(links)) or any(link.target.undefined != link.baseline.undefined for link in links):
            self._give_up(pair)  # a view reads nothing: what one side had not written yet may be there when it is read
            return
        self._taken.add(pair.baseline.id)
        self._add_links(pair, links)
        theirs = dict(pair.baseline.output_values())
        for slot, value in pair.target.output_values():
            other = theirs.get(slot)
            state = None if other is None else self.knows.wiring.state(value, other)
            if other is not None and state is not None:
                self.knows.evidence.known(pair, slot, self.knows.known.close(value, other), state.status)

    def _paired_by_flow(self, call: Call, *, from_outside: bool) -> Pair | None:
        """Return the pair of a call with one of the baseline's that is the same op and was given the same.

        Args:
            call: the target's.
            from_outside: that may be from outside alone, where calls of one op seem to come in another order.
        """
        for other in self._given_alike(call, from_outside=from_outside):
            if other.op != call.op or other.id in self._taken or other.phase != call.phase:
                continue
            if self._is_given_the_same(Pair(call, other, "flow")):
                return self._found(call, other)
        return None

    def _is_given_the_same(self, pair: Pair, *, ahead: bool = False) -> bool:
        """Tell whether both calls are known to be given the same; `ahead`: what calls of a pair made is the same."""
        links = self.knows.links.of(pair)
        # Parts that make up no counterpart may be another partial sum.
        is_known = bool(links) and (ahead or not any(open_links(links))) and not any(map(is_unsettled, links))
        is_clean = not any(is_another_source(link) or (link.said and link.said.guilty) for link in links)
        return is_known and is_clean and not self.knows.differences(pair.target, pair.baseline)

    def _found(self, call: Call, other: Call) -> Pair:
        pair = self._pairs[call.id] = Pair(call, other, "flow")
        self.knows.wiring.pairs[call.id] = other
        self.found_by_flow.append(pair)
        return pair

    def _belongs_to_later(self, pair: Pair) -> bool:
        """Tell whether the baseline's call is given what a later one of the target's, without a partner, is; pair them.

        As where the target alone runs a model on the same once more, and on something else then.
        """
        for call in self._like(0, pair.target):
            is_free = call.id > pair.target.id and call.id not in self.knows.wiring.pairs
            is_free = is_free and self.knows.wiring.reads_of_pairs(call, pair.baseline)
            if is_free and self._is_given_the_same(Pair(call, pair.baseline, "flow"), ahead=True):
                self._found(call, pair.baseline)
                return True
        return False

    def _like(self, side: Side, call: Call) -> list[Call]:
        """Return the calls of one side that are of the op and phase of a call."""
        if not self._by_op[side]:
            for other in self.knows.flows[side].calls():
                self._by_op[side].setdefault((other.op, other.phase), []).append(other)
        return self._by_op[side].get((call.op, call.phase), [])

    def _paired_by_results(self, call: Call, instead_of: Call | None = None) -> Pair | None:
        """Return the pair of a call that nobody reads with the one of those like it in the baseline that made the same.

        A recurrent layer's kernels stack their last states, whether anybody wants them or not, in one order or another.
        """
        flows = self.knows.flows
        if call.phase != "forward" or call.mutated or flows[0].readers(call) or flows[0].is_view(call):
            return None
        found: list[tuple[float, int]] = []
        paired = {other.id for other in self.knows.wiring.pairs.values()}  # those that are read have their partner
        for other in self._like(1, call):
            is_taken = other.id in self._taken or (other.id in paired and flows[1].readers(other))
            if not is_taken and len(found) < _MOST_ALIKE:
                made, depth = self.knows.compared(call, other).values(), self.knows.known.depth
                apart = [distance(one, two, close, depth)[1] if close.known else math.inf for one, two, close in made]
                if apart and max(apart) <= 1:
                    found.append((max(apart), other.id))
        if not found or (instead_of is not None and min(found)[1] == instead_of.id):
            return None
        return self._found(call, self.knows.baseline.call(min(found)[1]))

    def _given_alike(self, call: Call, *, from_outside: bool) -> Iterator[Call]:
        """Yield calls of the baseline that are given what a call is: what a pair's call made, else from outside."""
        flows = self.knows.flows
        read = [value for _, value in flows[0].reads(call)]
        writers = [flows[0].writer(value) for value in read]
        makers = (self.knows.wiring.pairs.get(writer[0].id) for writer in writers if writer is not None)
        maker = next((maker for maker in makers if maker is not None), None)
        if maker is not None:
            yield from flows[1].readers(maker)
        if maker is not None or not from_outside:
            return
        for value in [v for v, writer in zip(read, writers, strict=True) if writer is None][:_MOST_FROM_OUTSIDE]:
            for other in self.knows.links.alike(value):
                yield from (reader for reader, _ in other.consumers)

    # -- evidence -----------------------------------------------------------------------------------------------

    def _add_links(self, pair: Pair, links: list[Link]) -> None:
        for link in links:
            if link.state is None:  # it made no difference to the result
                self.knows.evidence.known(pair, link.slot, link.close, "unknown", "its result is bitwise equal")
                continue
            if link.said is None:
                self.knows.evidence.known(pair, link.slot, link.close, link.state.status)
                continue
            row = self.knows.evidence.judged(pair, link.slot, link.close, link.said)
            self.knows.known.keep(link.target, link.baseline, link.state)
            if link.said.guilty:
                self._blame_link(pair, link, row)

    def _blame_link(self, pair: Pair, link: Link, row: Row) -> None:
        knows, cones = self.knows, link.cones
        if cones is not None and (cones[0].pieces or cones[1].pieces):
            wrong = knows.wrong_in(cones) if row.floor_from == "replay" else None
            odd = odd_call(cones, knows.flows, knows.known) if wrong is None else (wrong[0], wrong[1])
            calls = [call for cone in cones for call in cone.calls]
            known = said_of(knows.cut_inputs(cones[0]))
            seen_as = Finding("region", row, link.text, known, (pair.target.id, 0))
            knows.evidence.blame_region(seen_as, odd, calls)
            return
        from_outside = knows.wiring.is_from_outside(link.target, link.baseline)
        kind: FindingKind = "source" if from_outside else "rewired"
        knows.evidence.blame(kind, row, link.text, "", (pair.target.id, 0))

    def _add_results(
        self, pair: Pair, links: list[Link], results: dict[str, Compared], differences: list[ArgumentDifference]
    ) -> None:
        states = [(link, link.state) for link in links if link.state is not None]
        is_blank = all(close.undefined for _, _, close in results.values())  # else what is compared depends on no blank
        inputs = inputs_from([link for link, state in states if is_blank or not state.undefined])
        if any(link.close.dtype is not None for link in links):  # of those too that made no difference
            inputs = replace(inputs, same_dtypes=False)
        told = self.knows.numbers.tell(pair.target, pair.baseline)
        inputs = told.added_to(inputs)
        self.knows.numbers.note(pair.target, pair.baseline, inputs)
        judged = self.knows.judge.results(pair.target, pair.baseline, results, inputs)
        blamed = any(link.said is not None and link.said.guilty for link in links)
        for slot, (target, baseline, close) in results.items():
            said = judged[slot]
            if not is_workspace(pair.target.op, slot):
                said = self._with_arguments(said, close, inputs, differences)
            said = replace(said, note=said.note or COMPUTED) if told.computed else said
            state = replace(state_from(said, close, inputs.depth + 1), undefined=close.undefined or inputs.undefined)
            self.knows.known.keep(target, baseline, state)
            if close.reason == NOT_TOLD:
                self._not_told.append((pair.target, slot))
            row = self.knows.evidence.judged(pair, slot, close, said, inputs)
            if said.guilty and not blamed:
                blamed = True
                self._blame(pair, row, said, inputs, differences)
        defined = [judged[s] for s, (t, b, c) in results.items() if not (c.undefined or (t.undefined and b.undefined))]
        if defined and not inputs.undefined:
            self._note_proof(pair, defined, links, estimated=told.computed)

    def _note_proof(self, pair: Pair, judged: list[Judgement], links: list[Link], *, estimated: bool) -> None:
        proofs = self.knows.proofs
        said = [*judged, *(link.said for link in links if link.said is not None)]
        is_proven = not estimated and all(item.proven for item in said)
        (proofs.proven if is_proven else proofs.estimated).add(pair.target.id)

    def _with_arguments(
        self, said: Judgement, close: Closeness, inputs: Inputs, differences: list[ArgumentDifference]
    ) -> Judgement:
        """Hold other arguments, or another dtype, against a result that is not bitwise equal."""
        if not close.known:
            said = replace(said, seen="; ".join(map(str, differences)))
        if said.floor_from == "rule" or not inputs.agree or not inputs.same_shapes:
            return said
        declared = {*self.knows.sources.precisions, self.knows.computed_in} if close.dtype is not None else set()
        wrong_dtype = close.dtype is not None and inputs.same_dtypes and close.dtype not in declared
        if wrong_dtype or (not close.bitwise and close.known and differences):
            return replace(said, status="different", guilty=True)
        return said

    def _blame(
        self, pair: Pair, row: Row, said: Judgement, inputs: Inputs, differences: list[ArgumentDifference]
    ) -> None:
        close = row.closeness
        assert close is not None
        kind: FindingKind = "op"
        if differences and inputs.same_shapes:
            kind, text = "argument", f"it was called with other arguments: {'; '.join(map(str, differences))}"
            self._open_pairs.accused.add(pair.target, differences)
        elif close.shape is not None:
            kind, text = "shape", f"its result has shape {list(close.shape[0])}, in the baseline {list(close.shape[1])}"
        elif said.note == OTHER_DRAWS:
            kind, text = "random", said.note
        elif close.nonfinite:
            kind, text = "nonfinite", "NaN or Inf stand at other places of its result"
        elif close.dtype is not None and said.ratio is None:
            kind, text = "dtype", f"its result is {close.dtype[0]}, in the baseline {close.dtype[1]}"
        else:
            text = "its result is wrong for its inputs" if said.own else "its result does not agree"
        if said.note and said.note not in text:
            text = f"{text} ({said.note})"
        self.knows.evidence.blame(kind, row, text, said_of(inputs), (pair.target.id, 1))
