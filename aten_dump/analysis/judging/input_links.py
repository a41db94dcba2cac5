"""The inputs of one pair of calls: what is known of each, and what all of them say together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...dump import Value
from ..distance.value_distance import Closeness
from ..evidence.evidence_rows import Pair
from ..evidence.judgement import Judgement
from ..evidence.states import Inputs, State, inputs_of
from ..flow.counterparts import Counterparts
from ..flow.data_flow import DataFlow
from ..flow.regions import Cone
from ..flow.wiring import Wiring
from .sources import Sources


@dataclass(slots=True)
class Link:
    """One input of a pair of calls; without a state it is not known whether both are the same thing."""

    slot: str
    target: Value
    baseline: Value
    close: Closeness
    state: State | None = None
    said: Judgement | None = None  # where it was judged here: memory from outside, a region
    text: str = ""  # the sentence if that is a finding
    cones: tuple[Cone, Cone] | None = None  # the calls behind both, where they were compared


def state_from(said: Judgement, close: Closeness, depth: int = 0) -> State:
    """Return the state of a pair of values that was judged."""
    noise = close.metrics.rmse if close.metrics is not None else 0.0
    return State(said.status, close.error or 0.0, depth, noise)


class Links:
    """Finds out what is known of the inputs of pairs."""

    def __init__(self, flows: tuple[DataFlow, DataFlow], known: Counterparts, wiring: Wiring, sources: Sources) -> None:
        self._flows = flows
        self._known = known
        self._wiring = wiring
        self._sources = sources

    def of(self, pair: Pair) -> list[Link]:
        """Return a link for each input that both calls read."""
        theirs = dict(pair.baseline.input_values())
        return [
            self._link(slot, value, theirs[slot]) for slot, value in self._flows[0].reads(pair.target) if slot in theirs
        ]

    def _link(self, slot: str, target: Value, baseline: Value) -> Link:
        link = Link(slot, target, baseline, self._known.close(target, baseline))
        if target.undefined and baseline.undefined:
            link.state = State("unknown", undefined=True)
        elif target.undefined or baseline.undefined:
            link.said, link.text = _half_undefined(target)
        elif target.unsettled or baseline.unsettled:
            link.state = State("unknown", depth=self._known.depth)
        else:
            from_outside = self._wiring.is_from_outside(target, baseline)
            if from_outside and link.close.dtype is not None:
                self._sources.precisions.add(link.close.dtype)
            link.state = self._wiring.state(target, baseline)
            if link.state is None and from_outside:
                link.said, link.text = self._sources.judge(target, baseline, link.close)
        if link.said is not None and link.state is None:
            link.state = state_from(link.said, link.close)
        return link


def _half_undefined(target: Value) -> tuple[Judgement, str]:
    side = (
        "nothing had written, in the baseline it was" if target.undefined else "was written, in the baseline it was not"
    )
    return Judgement("different", True, floor_from="exact"), f"it reads memory that {side}"


def inputs_from(links: list[Link]) -> Inputs:
    """Return what links say together; those that are open count as different."""
    states = [link.state or State("different", link.close.error or 0.0) for link in links]
    shapes = all(link.close.shape is None for link in links)
    dtypes = all(link.close.dtype is None for link in links)
    return inputs_of(states, same_shapes=shapes, same_dtypes=dtypes)


def open_links(links: list[Link]) -> Iterator[Link]:
    """Yield the inputs of which it is not known whether both are the same thing."""
    return (link for link in links if link.state is None)
