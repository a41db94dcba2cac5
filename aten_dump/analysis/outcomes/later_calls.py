"""What comes of results later: places where two programs that write something otherwise may meet again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..evidence.evidence_rows import Pair
from ..flow.counterparts import Side
from ..flow.data_flow import DataFlow, made_by_both, read_by_both
from ..flow.regions import Regions
from ..flow.wiring import Wiring
from ..rerun.shared_memory import moment_of

_MOST_AHEAD: Final = 120  # calls of the target, of what comes of a pair, that are looked at for where two ways meet


class LaterCalls:
    """Walks from results of the target's calls to what both sides make of them."""

    def __init__(
        self,
        flows: tuple[DataFlow, DataFlow],
        wiring: Wiring,
        regions: Regions,
        ends: Sequence[tuple[Value, Value]],
    ) -> None:
        """Prepare to walk; `ends` are losses and gradients of both sides, where ways may meet as well."""
        self._flows = flows
        self._wiring = wiring
        self._regions = regions
        self._ends = ends

    def of(
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
        flow, pairs = self._flows[0], self._wiring.pairs
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
            call = flow.rank.call(number)
            if reads_no_elements(call.op) or not (terms := {v.id for _, v in flow.reads(call) if comes_of_it(v)}):
                continue
            ours.add(number)
            for reader in flow.readers(call):
                heappush(waiting, reader.id)
            partner = pairs.get(number)
            if partner is None:
                continue
            if given:
                for target, baseline in read_by_both(self._flows, call, partner).values():
                    if comes_of_it(target) and could_tell([target], [baseline]):
                        yield [target], [baseline]
                continue
            if call.phase == "optimizer":
                continue  # a step of Adam is nearly the same for a gradient of another scale
            values = self._made_by(call, partner)
            is_near = most > 0 or len(terms) > 1
            if is_near and could_tell(*values) and self._comes_of(1, values[1], pair.baseline):
                most -= 1
                yield values
        for end, other in () if given else self._ends:
            if comes_of_it(end) and self._comes_of(1, [other], pair.baseline):
                yield [end], [other]

    def ends_behind(self, pair: Pair) -> Iterator[tuple[list[Value], list[Value]]]:
        """Yield losses and gradients that come of both calls of a pair, however many other calls lie between.

        A recurrent network that is given the sequences of a batch in another order has them in order again at its end.
        """
        for end, other in self._ends:
            is_behind = could_tell([end], [other]) and self._comes_of(0, [end], pair.target)
            if is_behind and self._comes_of(1, [other], pair.baseline):
                yield [end], [other]

    def _made_by(self, call: Call, partner: Call) -> tuple[list[Value], list[Value]]:
        """Return what both calls of a pair make, or read where they make nothing."""
        found = made_by_both(self._flows, call, partner) or read_by_both(self._flows, call, partner)
        return [target for target, _ in found.values()], [baseline for _, baseline in found.values()]

    def _goes_on(self, call: Call, result: Value) -> bool:
        """Tell whether later calls of the target make numbers of the numbers in a result."""
        flow = self._flows[0]
        if not result.is_floating:
            return False
        readers = (later for later in flow.readers(call) if not reads_no_elements(later.op))
        readers = (later for later in readers if any(_is_of(result, value) for _, value in flow.reads(later)))
        return any(value.is_floating for later in readers for _, value in flow.results(later))

    def _comes_of(self, side: Side, values: list[Value], origin: Call) -> bool:
        """Tell whether what has no counterpart behind a side's values begins at a call."""
        return any(maker.id == origin.id for maker in self._regions.cone(side, values).calls)


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


def could_tell(targets: list[Value], baselines: list[Value]) -> bool:
    """Tell whether results can show that ways met: a mask or an index may be the same of what is not."""
    both = zip(targets, baselines, strict=True)
    return all(t.shape == b.shape for t, b in both) and any(t.is_floating for t in targets)
