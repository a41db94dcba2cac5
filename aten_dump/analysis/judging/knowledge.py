"""All that a walk over two recordings knows, and what it asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import torch

from ...dump import Call, RankDump, Value
from ..distance.value_distance import Closeness
from ..evidence.evidence_rows import EvidenceRows, Pair
from ..evidence.findings import Status
from ..evidence.judgement import Compared
from ..evidence.noise_floors import limits_of
from ..evidence.states import WORSE, Inputs, inputs_of
from ..flow.argument_differences import ArgumentDifference, argument_differences
from ..flow.computed_dtype import computed_dtype, dtype_text
from ..flow.cones import Cone
from ..flow.counterparts import Counterparts
from ..flow.data_flow import DataFlow, made_by_both
from ..flow.flat_memory import has_parts
from ..flow.read_numbers import ReadNumbers
from ..flow.regions import Regions
from ..flow.roots import is_wrapper
from ..flow.undefined_memory import UndefinedMemory
from ..flow.wiring import Wiring
from ..rerun.op_errors import Undefined
from ..rerun.rounding_error import SUSPECT
from ..rerun.undefined_elements import DEPENDS
from ..tasks import records_all_ops
from .input_links import Links
from .result_judge import ResultJudge, is_random
from .sources import Sources

_SIDES: Final = ("target", "baseline")


@dataclass(slots=True)
class Proofs:
    """Which calls of the target were shown to be right, by id; and what became of calls without a counterpart."""

    proven: set[int] = field(default_factory=set)
    estimated: set[int] = field(default_factory=set)
    region_status: dict[tuple[str, int], Status] = field(default_factory=dict)  # by side and id


class Knowledge:
    """What is known of two recordings, the target's and the baseline's, while they are walked."""

    wrapped = False  # of ops on DTensors: what they run on local tensors is judged, not they themselves

    def __init__(
        self, ranks: tuple[RankDump, RankDump], kind: str, judge: ResultJudge, sources: Sources, *, read_data: bool
    ) -> None:
        self.target, self.baseline = target, baseline = ranks
        self.kind = kind
        self.judge = judge
        self.sources = sources
        self.flows = DataFlow(target, kind, wrapped=self.wrapped), DataFlow(baseline, kind, wrapped=self.wrapped)
        one, other = (UndefinedMemory(flow, runs=read_data) for flow in self.flows)
        self._undefined = one, other
        self.known = Counterparts(read_data=read_data, undefined=self._undefined)
        judge.replays.undefined = self._undefined_in
        self.wiring = Wiring(self.flows, self.known, lambda one, other: not self.differences(one, other))
        self.links = Links(self.flows, self.known, self.wiring, sources)
        self.numbers = ReadNumbers()
        self.regions = Regions(self.flows, self.known, self.links.tie, self.links.tie_alike, self.numbers.counterparts)
        self.evidence = EvidenceRows()
        self.proofs = Proofs()

    @property
    def tells_memory(self) -> bool:
        """Whether both sides say which tensors lie in the same memory: other tools do not."""
        return not any(rank.config.get("source") for rank in (self.target, self.baseline))

    @property
    def tells_all(self) -> bool:
        """Whether every op of both sides was recorded, as each rank ran it: what no call reads is read by none."""
        ranks = self.target, self.baseline
        is_whole = all(
            not rank.index_lacks and records_all_ops(rank) and not rank.config.get("trigger") for rank in ranks
        )
        return self.kind == "aten" and is_whole and self.tells_memory and not self.wrapped

    def differences(self, target: Call, baseline: Call) -> list[ArgumentDifference]:
        """Return the arguments that differ, but those that other precisions or numbers that were read explain."""
        found = [d for d in argument_differences(target, baseline) if not self.numbers.explain(d)]
        return [d for d in found if d.dtypes is None or not (self.sources.precisions or d.dtypes == self.computed_in)]

    @cached_property
    def computed_in(self) -> tuple[str, str] | None:
        """The dtypes in which both sides compute as a whole, where each has one: asking for it is no other argument."""
        one, other = computed_dtype(self.target), computed_dtype(self.baseline)
        return None if one is None or other is None else (dtype_text(one), dtype_text(other))

    def results(self, target: Call, baseline: Call) -> dict[str, tuple[Value, Value]]:
        """Return what both calls made, by slot."""
        return made_by_both(self.flows, target, baseline)

    def compared(self, target: Call, baseline: Call) -> dict[str, Compared]:
        """Return what both calls made, and how close that is, by slot."""
        found = {slot: (t, b, self.known.close(t, b)) for slot, (t, b) in self.results(target, baseline).items()}
        if not is_random(target):
            return found
        return {slot: (t, b, _drawn(t, b, close)) for slot, (t, b, close) in found.items()}

    def _undefined_in(self, call: Call) -> Undefined:
        """Return which elements of a call's results depend on memory that nothing had written."""
        for memory, rank in zip(self._undefined, (self.target, self.baseline), strict=True):
            if call.rank is rank:
                found = {slot: memory.elements(value) for slot, value in call.result_values()}
                return {slot: elements == DEPENDS for slot, elements in found.items() if elements is not None}
        return {}  # another rank's, as part of a collective

    def cut_inputs(self, cone: Cone) -> Inputs:
        """Return what is known of the values that a cone of the target's starts from."""
        states = [state for value in cone.cut if (state := self.known.state_of(value)) is not None]
        return inputs_of(states)

    def note_region(self, cones: tuple[Cone, Cone], status: Status, *, proven: bool) -> None:
        """Note what became of the calls of two cones."""
        for side, cone in zip(_SIDES, cones, strict=True):
            for call in cone.calls:
                before = self.proofs.region_status.get((side, call.id), "same")
                self.proofs.region_status[side, call.id] = max(before, status, key=lambda s: WORSE[s])
        ids = {call.id for call in cones[0].calls}
        if proven:
            self.proofs.proven |= ids - self.proofs.estimated
        else:
            self.proofs.estimated |= ids
            self.proofs.proven -= ids

    def wrong_in(self, cones: Sequence[Cone]) -> tuple[Call, int, str] | None:
        """Return the first call that is off by more than rounding, by a float64 replay, its side, and what is wrong."""
        replays = self.judge.replays
        for side, cone in enumerate(cones):
            for call in cone.calls:
                errors = replays.errors(call) if replays.enabled and not self.flows[side].is_view(call) else ""
                for slot, error in errors.items() if isinstance(errors, dict) else ():
                    if error.ratio > SUSPECT:
                        text = f"{call.name}.{slot} is off by {error.error:.3g} (relative L2) from a float64 replay"
                        return call, side, text
        return None

    def describe(self, pair: Pair) -> None:
        """Add rows of a pair that is not judged: what is known of its values."""
        parts = (
            (pair.target.input_values(), pair.baseline.input_values()),
            (pair.target.result_values(), pair.baseline.result_values()),
        )
        for values, others in parts:
            slots = dict(others)
            for slot, value in values:
                if slot in slots:
                    close = self.known.close(value, slots[slot])
                    self.evidence.known(pair, slot, close, self.known_status(value, slots[slot], close))

    def known_status(self, target: Value, baseline: Value, close: Closeness) -> Status:
        """Return the status of two values that nobody judged."""
        if target.undefined or baseline.undefined or has_parts(target) != has_parts(baseline):
            return "unknown"
        if is_wrapper(target) or is_wrapper(baseline):
            return "unknown"  # one sample of a batch, to a function under `vmap`: the calls beneath see all of it
        state = self.wiring.state(target, baseline)
        if state is not None:
            return state.status
        known = self.known.is_known(0, target) or self.known.is_known(1, baseline)
        made = not self.wiring.is_from_outside(target, baseline)
        if known or made:
            return "unknown"  # others are their counterparts, or what their region leads to is compared
        if not close.known or (self.kind == "aten" and not _is_read(target) and not _is_read(baseline)):
            return "unknown"  # as the old content of an ``out=`` buffer
        if close.shape is not None or close.nonfinite or close.level == "hash":
            return "different"
        limits = limits_of(target, baseline).times(2.0 * math.sqrt(1 + self.known.depth))
        if (close.error or 0.0) <= limits.rel_l2:
            return "within"
        return "unknown" if self.kind == "aten" else "different"  # no op made it or reads it


def _is_read(value: Value) -> bool:
    """Tell whether an op reads what a value holds."""
    return any(call.kind == "aten" and value.id in call.read_value_ids() for call, _ in value.consumers)


def _drawn(target: Value, baseline: Value, close: Closeness) -> Closeness:
    """Return how close random numbers are: they are drawn one by one, into whatever shape."""
    if close.shape is None or close.dtype is not None or target.numel != baseline.numel:
        return close
    if not (target.has_data and baseline.has_data and torch.equal(_flat(target), _flat(baseline))):
        return close
    return replace(close, bitwise=True, error=0.0, shape=None)


def _flat(value: Value) -> torch.Tensor:
    return value.tensor().reshape(-1)
