"""The inputs of one pair of calls: what is known of each, and what all of them say together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..distance.element_chunks import plain
from ..distance.value_distance import Closeness
from ..evidence.evidence_rows import Pair
from ..evidence.judgement import Judgement
from ..evidence.states import Inputs, State, inputs_of
from ..flow.cones import Cone
from ..flow.counterparts import Counterparts, Side
from ..flow.data_flow import DataFlow
from ..flow.leaves import LeafGradient, leaf_gradients, named_leaves
from ..flow.wiring import Wiring
from ..pairing.call_keys import normal_module
from .sources import Sources, digest_of

_FAR: Final = 0.1  # relative L2 of two tensors that hardly are one parameter in two runs
_NEAR: Final = 1e-3  # statistics of two tensors that may be one
_MOST_ALIKE: Final = 64  # values of one shape among which the nearest is looked for
_MOST_ELEMENTS: Final = 1 << 22  # of these together

_COMMUTE: Final = frozenset(("add", "mul", "maximum", "minimum", "logical_and", "logical_or", "eq", "ne"))
UNDEFINED: Final = State("unknown", undefined=True)


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
        self._aligned: Sequence[Pair] = ()
        self._by_place: dict[Side, dict[int, Value]] | None = None
        self._norms: dict[tuple[Side, int], float] = {}
        self._digests: dict[tuple[Side, int], str | None] = {}
        self._alike: dict[int, list[Value]] = {}

    def set_aligned(self, pairs: Sequence[Pair]) -> None:
        """Take all pairs of calls that were aligned, of every kind."""
        self._aligned = pairs

    def tie(self, side: Side, value: Value) -> None:
        """Find the counterpart of a value from outside that no pair of calls was given yet.

        Weights that one side casts or reshapes before it reads them have no common reader in forward, nor have those of
        a fused op. A parameter has a name; other pairs of calls are given it at one place: the optimizer's,
        Python-level ones.
        """
        partner = self._places()[side].pop(value.id, None)  # once: what is no counterpart now will be none later
        if partner is None or self._known.is_known(0 if side else 1, partner):
            return
        self._tie_if_sources(*((partner, value) if side else (value, partner)))

    def tie_alike(self, targets: Sequence[Value], baselines: Sequence[Value]) -> None:
        """Find out which values from outside, all behind one place of both sides, are counterparts: the nearest ones.

        What a fused optimizer is given in lists and a looped one call by call, a parameter's moments, has no place in
        common. Of gradients that are rounding alone they differ by their own size, and are the step before's affair.
        """
        found = [
            (apart, target.id, baseline.id, target, baseline)
            for target in targets
            for baseline in baselines
            if (apart := self._apart(target, baseline)) is not None
        ]
        taken: set[tuple[Side, int]] = set()
        for _, _, _, target, baseline in sorted(found, key=lambda item: item[:3]):
            both: set[tuple[Side, int]] = {(0, target.id), (1, baseline.id)}
            if not taken.isdisjoint(both):
                continue
            taken |= both
            self._tie_if_sources(target, baseline)

    def alike(self, value: Value) -> list[Value]:
        """Return what the baseline has from outside that may be the counterpart of a value of the target's.

        What has its name or its place in other calls, or holds the same, or nearly, whatever calls were aligned: those
        of one op may come in another order.
        """
        found: dict[int, Value] = {}
        for mine in [value, *self._flows[0].of_moment(value)]:
            for partner in (self._known.partner(0, mine), self._places()[0].get(mine.id)):
                if partner is not None:
                    found[partner.id] = partner
        if value.id not in self._alike:
            self._alike[value.id] = self._alike_by_contents(value)
        return list((found | {other.id: other for other in self._alike[value.id]}).values())

    def _alike_by_contents(self, value: Value) -> list[Value]:
        others = self._outside.get(_kind(value), [])
        wanted = self._digest(0, value)
        equal = [other for other in others if wanted is not None and self._digest(1, other) == wanted]
        return equal or self._nearest(value, others)

    def _nearest(self, value: Value, others: list[Value]) -> list[Value]:
        """Return which of the baseline's values is nearest to one of the target's, if one is near."""
        most = min(_MOST_ALIKE, _MOST_ELEMENTS // max(1, value.numel))
        apart = ((self._apart(value, other), other) for other in others[:most])
        near = [(distance, other.id, other) for distance, other in apart if distance is not None and distance < _FAR]
        return [min(near, key=lambda item: item[:2])[2]] if near else []

    @cached_property
    def _outside(self) -> dict[tuple[object, ...], list[Value]]:
        """What the baseline has from outside, views of it too, by dtype and shape."""
        found: dict[tuple[object, ...], list[Value]] = {}
        for value in self._flows[1].rank.values:
            if self._flows[1].writer(value) is None and not value.undefined:
                found.setdefault(_kind(value), []).append(value)
        return found

    def _digest(self, side: Side, value: Value) -> str | None:
        if (side, value.id) not in self._digests:
            self._digests[side, value.id] = digest_of(value)
        return self._digests[side, value.id]

    def _tie_if_sources(self, target: Value, baseline: Value) -> None:
        """Note that two values are counterparts, unless what came from outside may not differ as they do."""
        close = self._known.close(target, baseline)
        said, _ = self._sources.judge(target, baseline, close)
        if said.status in ("same", "within"):
            self._known.keep(target, baseline, state_from(said, close))

    def _apart(self, target: Value, baseline: Value) -> float | None:
        """Return the norm of the difference over the sum of both norms; None of what may not be or is not compared."""
        if not target.is_floating or (target.dtype, target.shape) != (baseline.dtype, baseline.shape):
            return None
        close = self._known.close(target, baseline)
        if close.bitwise:
            return 0.0
        if close.level == "statistic" and close.error is not None and close.error < _NEAR and not close.nonfinite:
            return close.error / 2  # of as many elements, at random, the statistics are hardly as near
        metrics = close.metrics
        if metrics is None or target.layout_name != "strided":
            return None
        size = self._norm(0, target) + self._norm(1, baseline)
        return metrics.rmse * math.sqrt(target.numel) / size if size else 0.0

    def _norm(self, side: Side, value: Value) -> float:
        if (side, value.id) not in self._norms:
            tensor = plain(value.tensor())
            wide = torch.complex128 if tensor.is_complex() else torch.float64
            self._norms[side, value.id] = float(torch.linalg.vector_norm(tensor, dtype=wide).real)
        return self._norms[side, value.id]

    @cached_property
    def leaf_gradients(self) -> tuple[dict[int, LeafGradient], dict[int, LeafGradient]]:
        """What was accumulated into which leaf, on both sides."""
        return leaf_gradients(self._flows[0]), leaf_gradients(self._flows[1])

    def _places(self) -> dict[Side, dict[int, Value]]:
        """Return values from outside of each side, and which of the other side's has the same name or place."""
        if self._by_place is None:
            self._by_place = {0: {}, 1: {}}
            named = map(named_leaves, self._flows, self.leaf_gradients)
            self._place_together(*({normal_module(name): value for name, value in side.items()} for side in named))
            for pair in self._aligned:
                self._place_together(dict(pair.target.input_values()), dict(pair.baseline.input_values()))
        return self._by_place

    def _place_together(self, targets: dict[str, Value], baselines: dict[str, Value]) -> None:
        """Note which values from outside of both sides have the same name, or are given in the same slot."""
        assert self._by_place is not None
        for name, value in targets.items():
            other = baselines.get(name)
            if other is None or _kind(value) != _kind(other):
                continue
            if self._wiring.is_from_outside(value, other):
                self._by_place[0].setdefault(value.id, other)
                self._by_place[1].setdefault(other.id, value)

    def note_precisions(self, pairs: Iterable[Pair]) -> None:
        """Note in which dtypes values from outside differ, before a call asks for one of these dtypes."""
        for pair in pairs:
            theirs = dict(self._flows[1].reads(pair.baseline))
            for slot, value in self._flows[0].reads(pair.target):
                other = theirs.get(slot)
                dtypes = value.dtype_name, value.dtype_name if other is None else other.dtype_name
                if other is None or dtypes[0] == dtypes[1] or value.shape != other.shape:
                    continue
                if value.is_floating and other.is_floating and self._wiring.is_from_outside(value, other):
                    self._sources.precisions.add(dtypes)

    def of(self, pair: Pair) -> list[Link]:
        """Return a link for each input that both calls read."""
        theirs = dict(pair.baseline.input_values())
        ours = [(slot, value) for slot, value in self._flows[0].reads(pair.target) if slot in theirs]
        if _commutes(pair.target) and _commutes(pair.baseline) and _is_crossed(self._wiring, ours, theirs):
            theirs = dict(zip(theirs, reversed(theirs.values()), strict=True))
        return [self._link(pair, slot, value, theirs[slot]) for slot, value in ours]

    def _link(self, pair: Pair, slot: str, target: Value, baseline: Value) -> Link:
        link = Link(slot, target, baseline, self._known.close(target, baseline))
        if link.close.undefined or (target.undefined and baseline.undefined):
            link.state = UNDEFINED
        elif target.undefined or baseline.undefined:
            if self._known.leaves_undefined(*((0, pair.target) if target.undefined else (1, pair.baseline))):
                link.said, link.text = _half_undefined(target)
            else:
                link.state = UNDEFINED
        elif is_unsettled(link):
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


def _is_crossed(wiring: Wiring, ours: list[tuple[str, Value]], theirs: dict[str, Value]) -> bool:
    """Tell whether both of what a call reads is known to be what the other reads at the other place."""
    if not len(ours) == len(theirs) == 2:
        return False
    given = [value for _, value in ours], list(theirs.values())
    straight = any(wiring.state(*both) is not None for both in zip(*given, strict=True))
    return not straight and all(wiring.state(*both) is not None for both in zip(given[0], given[1][::-1], strict=True))


def _commutes(call: Call) -> bool:
    """Tell whether a call of two tensors makes the same whichever comes first."""
    return read_op_name(call.op).name in _COMMUTE and not call.inputs[1]  # alpha


def _kind(value: Value) -> tuple[object, ...]:
    return value.dtype_name, tuple(value.shape)


def _half_undefined(target: Value) -> tuple[Judgement, str]:
    side = (
        "nothing had written, in the baseline it was" if target.undefined else "was written, in the baseline it was not"
    )
    return Judgement("different", True, floor_from="exact"), f"it reads memory that {side}"


def is_shaped_otherwise(link: Link) -> bool:
    """Tell whether both sides have the same elements there, in another shape: random numbers may be drawn so."""
    return link.state is not None and link.state.status == "same" and link.close.shape is not None


def is_another_source(link: Link) -> bool:
    """Tell whether both are from outside and not the same, or so far apart that they hardly are.

    Each side inherits all its parameters from the step before: which is which that does not tell.
    """
    if link.said is None or link.target.undefined or link.baseline.undefined:
        return False
    return link.said.guilty or (link.said.status == "within" and (link.close.error or 0.0) > _FAR)


def is_unsettled(link: Link) -> bool:
    """Tell whether it is not known how parts on several ranks make up one of both."""
    return link.target.unsettled or link.baseline.unsettled


def inputs_from(links: list[Link]) -> Inputs:
    """Return what links say together; those that are open count as different."""
    states = [link.state or State("different", link.close.error or 0.0) for link in links]
    shapes = all(link.close.shape is None for link in links)
    dtypes = all(link.close.dtype is None for link in links)
    return inputs_of(states, same_shapes=shapes, same_dtypes=dtypes)


def open_links(links: list[Link]) -> Iterator[Link]:
    """Yield the inputs of which it is not known whether both are the same thing."""
    return (link for link in links if link.state is None)
