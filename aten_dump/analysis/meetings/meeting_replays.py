"""Replays that know the other ranks: what a collective delivered is held against what all of them sent.

Theory of operation
    A collective is right if each rank got what must come of what all gave. That is asked of each side's own ranks. If
    it is right on both sides and the results differ, what other ranks sent differs: that is proven or refuted where
    those ranks are compared, and `leans` notes on whom the proof rests. So a bug on one rank is found there and once,
    and the noise of one rank is nobody's fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...dump import Call, RankDump, Value
from ...dump.handles import Recording
from ...errors import AtenDumpError, ReplayError
from ...store.op_names import is_collective
from ..distance.element_chunks import plain
from ..evidence.noise_floors import Limits
from ..evidence.other_ranks import Leaning
from ..rerun.op_errors import OwnError, Replays
from ..rerun.rounding import Rounding
from ..rerun.rounding_error import LocalError, measure, measure_exact
from .collective_reference import Asked, Sent, got, input_splits_of, name_of, reduction_of
from .meeting_points import Attendance, attendance_of, others_at, ranks_of, root_of
from .process_groups import group_of, is_message

_MOST_RANKS: Final = 16  # of a group whose tensors are read
_MOST_ELEMENTS: Final = 1 << 26  # that one of them sends
Waited = Mapping[int, Sequence[tuple[str, Value]]]
_GROWTH: Final = 2.0  # of the dtype's limits, times the root of the number of ops


class AllRanks:
    """The ranks of one step of one dump, opened as they are asked for."""

    def __init__(self, one: Recording) -> None:
        self._one = one
        self._ranks: dict[int, Recording | None] = {one.rank: one}
        self._attendance: dict[int, Attendance] = {}

    def rank(self, number: int) -> Recording | None:
        """Return the recording of a rank; None where there is none."""
        if number not in self._ranks:
            directory = self._one.directory.with_name(f"rank{number}")
            self._ranks[number] = RankDump(directory, self._one.step, number) if directory.is_dir() else None
        return self._ranks[number]

    def attendance(self, number: int) -> Attendance:
        """Return the meetings of a rank that is there."""
        if number not in self._attendance:
            rank = self.rank(number)
            assert rank is not None
            self._attendance[number] = attendance_of(rank)
        return self._attendance[number]

    def calls_at(self, call: Call) -> dict[int, Call] | str:
        """Return each rank's call at the meeting that one rank's call takes part in, or why that is not known."""
        part = self.attendance(self._one.rank).by_call.get(call.id)
        if part is None:
            return "a collective: which calls of the other ranks it met is not known"
        ranks = ranks_of(part.key)
        if len(ranks) > _MOST_RANKS:
            return f"a collective of {len(ranks)} ranks; {_MOST_RANKS} are read at the most"
        absent = [number for number in ranks if self.rank(number) is None]
        if absent:
            return f"a collective: rank {', '.join(map(str, absent))} is not in the dump"
        others = others_at(part, self._one.rank, {number: self.attendance(number) for number in ranks})
        if others is None:
            return "a collective: the ranks did not begin equally many"
        found = {self._one.rank: call}
        for number, id in others.items():
            rank = self.rank(number)
            theirs = None if rank is None else rank.find(id)
            assert theirs is not None
            found[number] = theirs
        return {number: found[number] for number in ranks}


@dataclass(slots=True)
class _Meeting:
    """One collective, and what each rank gave to it."""

    call: Call
    asked: Asked
    sent: dict[int, list[Tensor]]  # by global rank

    def expected(self) -> list[Tensor] | None:
        """Return what the rank in question must get, in the dtypes that were sent."""
        return got(name_of(self.call), self._rows(wide=False), self.asked)

    def reference(self) -> list[Tensor] | None:
        """Return the same, in float64."""
        return got(name_of(self.call), self._rows(wide=True), self.asked)

    def _rows(self, *, wide: bool) -> Sent:
        return [[_wide(t) if wide else t for t in tensors] for tensors in self.sent.values()]


class MeetingReplays(Replays):
    """Replays of ops, and of collectives with what the other ranks of the same dump gave."""

    def __init__(self, *, enabled: bool = True) -> None:
        super().__init__(enabled=enabled)
        self.leans: list[Leaning] = []
        self._all: dict[int, AllRanks] = {}

    def local_errors(self, target: Call, baseline: Call) -> dict[str, OwnError] | str:
        """Return the local error of each result by slot, or why there is none."""
        found = super().local_errors(target, baseline)
        if is_collective(target.op) and isinstance(found, dict):
            self._lean(target, baseline)
        return found

    def errors(self, call: Call) -> dict[str, LocalError] | str:
        """Return the distance of each result from what it must be, or why that is not known."""
        if not is_collective(call.op):
            return super().errors(call)
        key = id(call.rank), call.id
        if key not in self._known:
            try:
                self._known[key] = self._collective(call)
            except AtenDumpError as error:
                self._known[key] = str(error)
        return self._known[key]

    def errors_of_wait(self, wait: Call) -> dict[str, LocalError] | str:
        """Return how far what a wait returned is from what the collective must have brought."""
        storage = wait.input_values()[0][1].storage
        rank = self._ranks_of(wait)
        begun = (wait.rank.find(id) for id in rank.attendance(wait.rank.rank).by_call if id < wait.id)
        for call in begun:
            for _, value in () if call is None else call.result_values():
                if call is not None and storage and value.storage == storage:
                    try:
                        return self._collective(call, {value.id: wait.output_values()[:1]})
                    except AtenDumpError as error:
                        return str(error)
        return "a collective: what was waited for began before the step"

    def _collective(self, call: Call, waited: Waited | None = None) -> dict[str, LocalError] | str:
        """Return the error of each result; `waited` are results as a wait returned them, by the value waited for."""
        meeting = self._meeting(call)
        if isinstance(meeting, str):
            return meeting
        try:
            plain, wide = meeting.expected(), meeting.reference()
        except RuntimeError as error:  # shapes that do not fit
            return f"a collective: {str(error).splitlines()[0]}"
        results = _distinct(call)
        if plain is None or wide is None or len(plain) != len(results):
            return f"a collective: what {call.op} must deliver is not known here"
        found = {}
        for (slots, value), native, reference in zip(results, plain, wide, strict=True):
            shown = [(slot, value) for slot in slots] if waited is None else waited.get(value.id, [])
            for slot, seen in shown:
                recorded = seen.tensor()
                if recorded.numel() != native.numel():
                    return "a collective: what was sent has another number of elements"
                found[slot] = _measured(slot, recorded, native, reference, len(meeting.sent))
        return found

    def _meeting(self, call: Call) -> _Meeting | str:
        """Return a collective with what all ranks gave to it, or why that is not known."""
        calls = self._ranks_of(call).calls_at(call)
        group = group_of(call)
        if isinstance(calls, str) or group is None:
            return calls if isinstance(calls, str) else "a collective of an unknown group"
        numbers = list(calls)
        if is_message(call.op):
            return _Meeting(call, Asked(1, 0, "", ()), {numbers[0]: given_by(calls[numbers[0]])})
        root = root_of(call, group)
        place = None if root is None else numbers.index(root)
        splits = tuple(input_splits_of(one) for one in calls.values())
        asked = Asked(numbers.index(call.rank.rank), place, reduction_of(call), splits)
        return _Meeting(call, asked, {number: given_by(one) for number, one in calls.items()})

    def _ranks_of(self, call: Call) -> AllRanks:
        known = self._all.get(id(call.rank))
        if known is None:
            known = self._all[id(call.rank)] = AllRanks(call.rank)
        return known

    def _lean(self, target: Call, baseline: Call) -> None:
        """Note which other ranks sent something else in both dumps."""
        mine, theirs = (self._ranks_of(call).calls_at(call) for call in (target, baseline))
        if isinstance(mine, str) or isinstance(theirs, str):
            return
        differing, worst = [], 0.0
        for one, other in zip(mine, theirs, strict=False):
            if one != target.rank.rank:
                error = _distance(given_by(mine[one]), given_by(theirs[other]))
                worst = max(worst, error)
                differing += [one] if error else []
        if differing:
            dtype = max((v.dtype for _, v in target.result_values() if v.is_floating), key=_eps, default=torch.float32)
            limit = Limits.of(dtype).rel_l2 * _GROWTH * math.sqrt(target.id)  # no value went through more ops
            self.leans.append(Leaning(target.name, target.id, tuple(differing), worst, limit))


def given_by(call: Call) -> list[Tensor]:
    """Return what a rank gives to a collective.

    Raises:
        MissingDataError: bytes of it were not recorded.
        ReplayError: it gives memory that nothing had written, or too much to read.
    """
    read = call.read_value_ids() if is_heard(call) else ()
    values = [value for _, value in call.input_values() if value.id in read]
    if any(value.undefined for value in values):
        raise ReplayError(f"a collective: {call.name} of rank {call.rank.rank} gives memory that nothing had written")
    if sum(value.numel for value in values) > _MOST_ELEMENTS:
        raise ReplayError("a collective: its tensors are too large to read for all ranks")
    return [plain(value.tensor()) for value in values]


def is_heard(call: Call) -> bool:
    """Return True if what a rank holds matters to a collective: of a broadcast, only what its root holds."""
    group = group_of(call)
    root = None if group is None else root_of(call, group)
    return root in (None, call.rank.rank) or not name_of(call).startswith(("broadcast", "scatter"))


def _distinct(call: Call) -> list[tuple[list[str], Value]]:
    """Return each tensor that a call made, and the slots that show it."""
    found: dict[int, tuple[list[str], Value]] = {}
    for slot, value in call.result_values():
        found.setdefault(value.id, ([], value))[0].append(slot)
    return list(found.values())


def _measured(slot: str, recorded: Tensor, native: Tensor, reference: Tensor, terms: int) -> LocalError:
    native, reference = native.reshape(recorded.shape), reference.reshape(recorded.shape)
    if recorded.is_floating_point() or recorded.is_complex():
        return measure(slot, recorded, native.to(recorded.dtype), reference, Rounding(float(terms)))
    return measure_exact(slot, recorded, native.to(recorded.dtype))


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the greatest relative L2 between tensors of both dumps; infinity where their shapes differ."""
    worst = 0.0
    for one, other in zip(map(_wide, ours), map(_wide, theirs), strict=False):
        if one.shape != other.shape or not bool(torch.isfinite(one).all()):
            return math.inf
        apart, size = (float(torch.linalg.vector_norm(t.abs().double())) for t in (one - other, other))
        worst = max(worst, apart / size if size else math.inf if apart else 0.0)
    return worst if len(ours) == len(theirs) else math.inf
