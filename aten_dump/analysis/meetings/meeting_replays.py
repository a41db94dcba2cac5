"""Replays that know the other ranks: what a collective delivered is held against what all of them sent.

Theory of operation
    A collective is right if each rank got what must come of what all gave. That is asked of each side's own ranks. If
    it is right on both sides and the results differ, what other ranks sent differs: that is proven or refuted where
    those ranks are compared, and `leans` notes on whom the proof rests. So a bug on one rank is found there and once,
    and the noise of one rank is nobody's fault.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from ...dump import Call, Value
from ...dump.handles import Recording
from ...errors import AtenDumpError
from ...store.op_names import is_collective
from ..evidence.findings import Leaning, Part
from ..evidence.noise_floors import Limits
from ..rerun.op_errors import OwnError, Replays
from ..rerun.rounding_error import LocalError
from .evaluated_collectives import Brought, Collectives, distance_of, given_by, rank_beside
from .meeting_points import Attendance, attendance_of, ranks_of

Waited = Mapping[int, Sequence[tuple[str, Value]]]
_GROWTH: Final = 2.0  # of the dtype's limits, times the root of the number of ops


class MeetingReplays(Replays):
    """Replays of ops, and of collectives with what the other ranks of the same dump gave."""

    def __init__(self, *, enabled: bool = True, known: Collectives | None = None) -> None:
        """Take what is known of collectives, which others may have found out."""
        super().__init__(enabled=enabled)
        self._collectives = Collectives() if known is None else known
        self._attendances: dict[int, Attendance] = {}
        self._leaning: dict[tuple[int, int], tuple[Call, Call]] = {}

    def local_errors(self, target: Call, baseline: Call) -> dict[str, OwnError] | str:
        """Return the local error of each result by slot, or why there is none."""
        found = super().local_errors(target, baseline)
        if is_collective(target.op) and isinstance(found, dict):
            self._leaning.setdefault((target.id, baseline.id), (target, baseline))
        return found

    def errors(self, call: Call) -> dict[str, LocalError] | str:
        """Return the distance of each result from what it must be, or why that is not known."""
        if not is_collective(call.op):
            return super().errors(call)
        key = id(call.rank), call.id
        if key not in self._known:
            self._known[key] = self._collective(call)
        return self._known[key]

    def errors_of_wait(self, wait: Call) -> dict[str, LocalError] | str:
        """Return how far what a wait returned is from what the collective must have brought."""
        storage = wait.input_values()[0][1].storage
        begun = (wait.rank.find(id) for id in self._attendance(wait.rank).by_call if id < wait.id)
        for call in begun:
            for _, value in () if call is None else call.result_values():
                if call is not None and storage and value.storage == storage:
                    return self._collective(call, {value.id: wait.output_values()[:1]})
        return "a collective: what was waited for began before the step"

    def leans(self) -> tuple[Leaning, ...]:
        """Return which other ranks sent something else in both dumps, to collectives that are right.

        All of those ranks are read: it is for who compares some ranks alone.
        """
        found = [_Leant(*calls) for calls in self._leaning.values()]
        shares: defaultdict[tuple[int, int], list[tuple[_Leant, tuple[Part, Part]]]] = defaultdict(list)
        for leant in found:
            target, baseline = leant.target, leant.baseline
            parts = tuple(self._attendance(one.rank).by_call[one.id] for one in (target, baseline))
            for one, other in zip(ranks_of(parts[0].key), ranks_of(parts[1].key), strict=False):
                if one != target.rank.rank:
                    shares[one, other].append((leant, (parts[0], parts[1])))
        for numbers, asked in shares.items():
            sides = asked[0][0].target.rank, asked[0][0].baseline.rank
            ours, theirs = (rank_beside(side, number) for side, number in zip(sides, numbers, strict=True))
            if ours is not None and theirs is not None:
                meets = attendance_of(ours), attendance_of(theirs)
                for leant, parts in asked:
                    leant.note((ours, theirs), meets, parts)
                ours.let_go()
                theirs.let_go()
        return tuple(leant.told() for leant in found if leant.differing)

    def _attendance(self, rank: Recording) -> Attendance:
        if id(rank) not in self._attendances:
            self._attendances[id(rank)] = attendance_of(rank)
        return self._attendances[id(rank)]

    def _collective(self, call: Call, waited: Waited | None = None) -> dict[str, LocalError] | str:
        """Return the error of each result; `waited` are results as a wait returned them, by the value waited for."""
        results, brought = _distinct(call), []
        try:
            for number, (slots, value) in enumerate(results):
                shown = [(slot, value) for slot in slots] if waited is None else waited.get(value.id, [])
                brought += [Brought(number, slot, seen.tensor()) for slot, seen in shown]
            return self._collectives.errors(call, self._attendance(call.rank), brought, len(results))
        except AtenDumpError as error:
            return str(error)


@dataclass(slots=True)
class _Leant:
    """A collective that is right on both sides, and who sent something else to it."""

    target: Call
    baseline: Call
    differing: list[int] = field(default_factory=list)
    error: float = 0.0

    def note(
        self, ranks: tuple[Recording, Recording], meets: tuple[Attendance, Attendance], parts: tuple[Part, Part]
    ) -> None:
        """Note how far apart is what one rank sent in both dumps."""
        calls = [
            rank.find(there.by_key[part.key][part.number].call)
            for rank, there, part in zip(ranks, meets, parts, strict=True)
        ]
        assert calls[0] is not None
        assert calls[1] is not None
        error = distance_of(given_by(calls[0]), given_by(calls[1]))
        self.error = max(self.error, error)
        self.differing += [ranks[0].rank] if error else []

    def told(self) -> Leaning:
        target = self.target
        dtype = max((v.dtype for _, v in target.result_values() if v.is_floating), key=_eps, default=torch.float32)
        limit = Limits.of(dtype).rel_l2 * _GROWTH * math.sqrt(target.id)  # no value went through more ops
        return Leaning(target.name, target.id, tuple(self.differing), self.error, limit)


def _distinct(call: Call) -> list[tuple[list[str], Value]]:
    """Return each tensor that a call made, and the slots that show it."""
    found: dict[int, tuple[list[str], Value]] = {}
    for slot, value in call.result_values():
        found.setdefault(value.id, ([], value))[0].append(slot)
    return list(found.values())


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
