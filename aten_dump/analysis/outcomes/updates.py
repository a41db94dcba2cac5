"""What an optimizer's call comes to: the weights and the state that are written with it.

Theory of operation
    An optimizer divides by what its bias correction comes to before the root or behind it, and then its calls meet
    nowhere but in the weights. A weight hardly shows that a step is another one, as it is far larger: a step means the
    same if it does so to as many digits as any other result. All that is written with the call has to: the gradient
    of another scale, of which Adam makes nearly the same step, leaves other moments behind.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from functools import cached_property
from heapq import heappop, heappush
from typing import Final

import torch

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..distance.float64_results import SAME_NORM
from ..flow.counterparts import Counterparts, Side
from ..flow.data_flow import DataFlow
from ..flow.regions import NEARLY, Meaning, Regions

MAKES_STATE: Final = ("zeros_like", "zeros", "new_zeros", "full_like", "full", "clone")
_MOST_CALLS: Final = 400  # that come of one
_MOST_PLACES: Final = 100
_MOST_ALIKE: Final = 64  # places of the baseline that may be the counterpart of one
_MOST_TRIED: Final = 3  # of them, from the nearest


class Updates:
    """Compares what calls of the target's optimizer come to with what the baseline left there."""

    def __init__(self, flows: tuple[DataFlow, DataFlow], known: Counterparts, regions: Regions) -> None:
        self._flows = flows
        self._known = known
        self._regions = regions

    def meet(self, call: Call) -> list[Meaning]:
        """Return how what is written with a call means the same on both sides; nothing if some of it does not."""
        if call.phase != "optimizer":
            return []
        found: list[Meaning] = []
        for before, last in self._written_with(call).values():
            meaning = self._same_step(before, last)
            if meaning is None or len(found) >= _MOST_PLACES:
                return []
            found.append(meaning)
        return found

    def _written_with(self, call: Call) -> dict[tuple[object, ...], tuple[Value, Value]]:
        """Return what lasts and is written by calls that come of one: what it was, and what they left, by place."""
        found: dict[tuple[object, ...], tuple[Value, Value]] = {}
        flow = self._flows[0]
        for later in self._comes_of(call):
            for _, value in later.written_values():
                *_, before = (value, *flow.earlier(value))
                if before is not value and lasts(flow, before):
                    found[value.record.place] = before, value
        return found

    def _comes_of(self, call: Call) -> Iterator[Call]:
        """Yield a call and the optimizer's calls that compute with what it made, in execution order."""
        flow, seen = self._flows[0], {call.id}
        waiting = [call.id]
        while waiting and len(seen) <= _MOST_CALLS:
            now = flow.rank.call(heappop(waiting))
            yield now
            for reader in flow.readers(now):
                if reader.id not in seen and reader.phase == "optimizer":
                    seen.add(reader.id)
                    heappush(waiting, reader.id)

    def _same_step(self, before: Value, last: Value) -> Meaning | None:
        """Return how what the target's step left means what the baseline's did, to as many digits as the step has."""
        for other in self._left_instead(last):
            meaning = self._regions.compare([last], [other])
            if meaning.verdict != "same":
                continue
            times = _times_the_step(before, last)
            if meaning.error * times <= SAME_NORM:
                return meaning
            if meaning.error * times <= NEARLY:  # of the rounding of where both start from, it may be
                for found in self._regions.compare_from_further_back(last, other):
                    if found.verdict == "same" and found.error * times <= SAME_NORM:
                        return found
        return None

    def _left_instead(self, last: Value) -> list[Value]:
        """Return what the baseline left where the target left a value or, if that is not known, at the likeliest."""
        earlier = self._flows[0].earlier(last)
        partner = next((p for v in (last, *earlier) if (p := self._known.partner(0, v)) is not None), None)
        places = self._left_by_baseline
        if partner is not None:
            return [places[partner.record.place]] if partner.record.place in places else []
        return nearest(self._known, 0, last, [v for v in places.values() if not self._known.is_known(1, v)])

    @cached_property
    def _left_by_baseline(self) -> dict[tuple[object, ...], Value]:
        """What the baseline's optimizer left, by place."""
        flow, found = self._flows[1], dict[tuple[object, ...], Value]()
        for call in flow.calls():
            if call.phase == "optimizer":
                found |= {v.record.place: v for _, v in flow.results(call) if v.storage and v.is_floating}
        return found


def nearest(known: Counterparts, side: Side, last: Value, places: Iterable[Value]) -> list[Value]:
    """Return those of some places of the other side that come nearest to what one side left, the nearest first."""
    alike = [v for v in places if (v.shape, v.dtype_name) == (last.shape, last.dtype_name)][:_MOST_ALIKE]
    close = [(known.close(v, last) if side else known.close(last, v), v) for v in alike]
    near = [(math.inf if found.error is None else found.error, v.id, v) for found, v in close if found.known]
    return [v for *_, v in sorted(near, key=lambda item: item[:2])][:_MOST_TRIED]


def pair_of_state(call: Call, known: Counterparts, taken: Container[int]) -> Call | None:
    """Return the baseline's call that makes the state of the same parameter as an optimizer's call does.

    All state is zeros at first, in which no parameter shows: the order is no sign of it.

    Args:
        call: the target's.
        known: which values are each other's counterparts.
        taken: ids of the baseline's calls that have a partner.
    """
    if call.phase != "optimizer" or read_op_name(call.op).name not in MAKES_STATE:
        return None
    given = call.input_values()
    parameter = known.partner(0, given[0][1]) if given else None
    readers = () if parameter is None else (reader for reader, _ in parameter.consumers)
    return next((c for c in readers if (c.op, c.phase) == (call.op, call.phase) and c.id not in taken), None)


def lasts(flow: DataFlow, before: Value) -> bool:
    """Tell whether memory outlives the step: it came from outside, or the optimizer made it as its state."""
    maker = flow.maker(before)
    return maker is None or (maker.phase == "optimizer" and read_op_name(maker.op).name in MAKES_STATE)


def _times_the_step(before: Value, last: Value) -> float:
    """Return how many times as large as what was changed of it a result is; infinity where that is not known.

    What does not change, as in a warmup's first step, shows nothing: infinity, too.
    """
    if not (before.has_data and last.has_data):
        return math.inf
    now = last.tensor().to_dense().to(torch.float64)
    step = float((now - before.tensor().to_dense().to(torch.float64)).norm())
    return float(now.norm()) / step if step > 0 else math.inf
