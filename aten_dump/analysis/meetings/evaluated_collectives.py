"""The collectives of a step, each evaluated once from what all of its ranks gave, however many there are.

Theory of operation
    The ranks are gone through one after the other: each is opened, gives what it gave to the collectives in question,
    and is let go of. What comes of it is kept up to a budget for the other ranks that meet there, so a comparison of a
    thousand ranks reads each of them twice and not a thousand times. Of what ranks got, the judgement is kept by its
    bytes: most collectives bring all ranks the same.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Final

import torch
import xxhash
from torch import Tensor

from ...dump import Call, RankDump
from ...dump.handles import Recording
from ...errors import AtenDumpError, ReplayError
from ..distance.element_chunks import plain
from ..evidence.findings import Key, Part
from ..rerun.rounding_error import LocalError, Rounding, measure, measure_exact
from .collective_reference import (
    Asked,
    Gathering,
    asked_by,
    brings_all_the_same,
    input_splits_of,
    name_of,
    reduction_of,
)
from .meeting_points import Attendance, attendance_of, group_of, is_message, ranks_of, root_of

_MOST_ELEMENTS: Final = 1 << 26  # that one rank sends
_KEPT_BYTES: Final = 512 << 20  # of what was evaluated
_BATCH_BYTES: Final = 128 << 20  # of what is evaluated together, as the sums in both precisions
_WIDE_BYTES: Final = 12  # of an element in two precisions

Meeting = tuple[str, Key, int]  # the folder of a step, and which of its meetings
_Judged = tuple[Meeting, int, int, bytes]  # ... the place in the group if it matters, which result, its digest


@dataclass(slots=True)
class _Whole:
    """What the ranks gave to one collective."""

    native: Gathering
    wide: Gathering  # in float64; of what is not reduced, nothing
    splits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    nbytes: int = 0
    why_not: str = ""  # why it is not known what it must deliver

    def take(self, place: int, call: Call) -> None:
        """Take what one rank gave."""
        given = given_by(call)
        self.splits[place] = input_splits_of(call)
        self.native.take(place, given)
        if self.native.is_reduced:
            self.wide.take(place, [wide(tensor) for tensor in given])

    def got(self, asked: Asked) -> tuple[list[Tensor], list[Tensor]] | None:
        """Return what a rank must get, in the dtypes that were sent and in float64."""
        native = self.native.got(asked)
        reference = self.wide.got(asked) if self.native.is_reduced else native
        return None if native is None or reference is None else (native, [wide(one) for one in reference])


@dataclass(frozen=True, slots=True)
class Brought:
    """A tensor that a collective brought to a rank, as it was recorded."""

    number: int  # which of its results
    slot: str
    tensor: Tensor


class Collectives:
    """The collectives of steps of dumps. It may be asked from several threads."""

    def __init__(self) -> None:
        self._wholes: OrderedDict[Meeting, _Whole] = OrderedDict()
        self._judged: dict[_Judged, LocalError] = {}
        self._lock = RLock()

    def errors(
        self, call: Call, attendance: Attendance, brought: Sequence[Brought], count: int
    ) -> dict[str, LocalError] | str:
        """Return the error of each result that a collective brought a rank, or why that is not known.

        Args:
            call: the rank's call.
            attendance: of that rank.
            brought: to that rank.
            count: the number of its results.
        """
        part = attendance.by_call.get(call.id)
        if part is None:
            return "a collective: which calls of the other ranks it met is not known"
        with self._lock:
            return self._errors(call, attendance, part, (brought, count))

    def _errors(
        self, call: Call, attendance: Attendance, part: Part, results: tuple[Sequence[Brought], int]
    ) -> dict[str, LocalError] | str:
        meeting = str(call.rank.directory.parent), part.key, part.number
        numbers, name, brought = ranks_of(part.key), name_of(call), results[0]
        mine = 1 if is_message(call.op) else numbers.index(call.rank.rank)
        place = -1 if brings_all_the_same(name) else mine
        keys = [(meeting, place, one.number, _digest(one.tensor)) for one in brought]
        known = [self._judged.get(key) for key in keys]
        if not brought or None in known:
            whole = self._whole(call, attendance, meeting)
            asked = asked_by(call, mine, numbers, [whole.splits[place] for place in sorted(whole.splits)])
            must = None if whole.why_not else whole.got(asked)
            if must is None or len(must[0]) != results[1]:
                return whole.why_not or f"a collective: what {call.op} must deliver is not known here"
            if any(one.tensor.numel() != must[0][one.number].numel() for one in brought):
                return "a collective: what was sent has another number of elements"
            known = [_measured(one, must, len(numbers)) for one in brought]
        self._judged.update((key, error) for key, error in zip(keys, known, strict=True) if error is not None)
        return {one.slot: replace(e, slot=one.slot) for one, e in zip(brought, known, strict=True) if e is not None}

    def _whole(self, call: Call, attendance: Attendance, meeting: Meeting) -> _Whole:
        """Return what the ranks gave to a meeting."""
        found = self._wholes.get(meeting)
        if found is None:
            self._evaluate(call.rank, attendance, meeting)
            found = self._wholes[meeting]
        self._wholes.move_to_end(meeting)
        return found

    def _evaluate(self, rank: Recording, attendance: Attendance, first: Meeting) -> None:
        """Evaluate a meeting, and those that the same rank comes to after it, as far as they fit into memory."""
        chosen = dict(self._batch(rank, attendance, first))
        counts = {key: len(parts) for key, parts in attendance.by_key.items()}
        for number in sorted({number for part in chosen for number in ranks_of(part.key)}):
            here = {part: one for part, one in chosen.items() if number in ranks_of(part.key) and not one.why_not}
            there = rank if number == rank.rank else rank_beside(rank, number)
            if there is None:
                for one in here.values():
                    one.why_not = f"a collective: rank {number} is not in the dump"
                continue
            known = attendance if there is rank else attendance_of(there)
            for part, one in here.items():
                theirs = known.by_key.get(part.key, [])
                if len(theirs) != counts[part.key]:
                    one.why_not = "a collective: the ranks did not begin equally many"
                else:
                    _take(one, part, there, theirs[part.number].call)
            if there is not rank:
                there.let_go()
        for part, one in chosen.items():
            self._wholes[(first[0], part.key, part.number)] = one
        self._make_room(first)

    def _batch(self, rank: Recording, attendance: Attendance, first: Meeting) -> Iterator[tuple[Part, _Whole]]:
        total = 0
        begun = False
        for part in attendance.parts:
            meeting = first[0], part.key, part.number
            begun = begun or meeting == first
            call = rank.find(part.call) if begun and meeting not in self._wholes else None
            if call is None:
                continue
            nbytes = _WIDE_BYTES * sum(v.numel for _, v in [*call.input_values(), *call.output_values()])
            total += nbytes
            if meeting != first and total > _BATCH_BYTES:
                return
            name, reduction = name_of(call), reduction_of(call)
            yield part, _Whole(Gathering(name, reduction), Gathering(name, reduction), nbytes=nbytes)

    def _make_room(self, keep: Meeting) -> None:
        total = sum(one.nbytes for one in self._wholes.values())
        for meeting in list(self._wholes):
            if total <= _KEPT_BYTES:
                return
            if meeting != keep:
                total -= self._wholes.pop(meeting).nbytes


_OF_COMPARISON: dict[str, Collectives] = {}  # in this process; of the one that is worked on


def collectives_of(comparison: str) -> Collectives:
    """Return what is known in this process to all tasks of a comparison; "" is none, and shares nothing."""
    if not comparison:
        return Collectives()
    found = _OF_COMPARISON.get(comparison)
    if found is None:
        _OF_COMPARISON.clear()
        found = _OF_COMPARISON[comparison] = Collectives()
    return found


def forget(comparison: str) -> None:
    """Let go of what was kept for a comparison."""
    _OF_COMPARISON.pop(comparison, None)


def rank_beside(one: Recording, number: int) -> Recording | None:
    """Return another rank of the same step; None if it is not on file."""
    directory = one.directory.with_name(f"rank{number}")
    return RankDump(directory, one.step, number) if directory.is_dir() else None


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


def distance_of(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the greatest relative L2 between tensors of both dumps; infinity where their shapes differ."""
    worst = 0.0
    for one, other in zip(map(wide, ours), map(wide, theirs), strict=False):
        if one.shape != other.shape or not bool(torch.isfinite(one).all()):
            return math.inf
        apart, size = (float(torch.linalg.vector_norm(t.abs().double())) for t in (one - other, other))
        worst = max(worst, apart / size if size else math.inf if apart else 0.0)
    return worst if len(ours) == len(theirs) else math.inf


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, or complex128; integers as they are."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _take(whole: _Whole, part: Part, rank: Recording, number: int) -> None:
    """Take what a rank gave to a meeting, or note why it is not known."""
    call = rank.find(number)
    assert call is not None
    place = ranks_of(part.key).index(rank.rank)
    if is_message(call.op) and place:
        return  # who receives gives nothing
    try:
        whole.take(place, call)
    except AtenDumpError as error:
        whole.why_not = str(error)
    except RuntimeError as error:  # shapes that do not fit
        whole.why_not = f"a collective: {str(error).splitlines()[0]}"


def _digest(tensor: Tensor) -> bytes:
    """Return what equal tensors of one shape and dtype have alike."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    begin = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return xxhash.xxh3_128_digest(begin + xxhash.xxh3_128_digest(flat.numpy().data))


def _measured(one: Brought, must: tuple[list[Tensor], list[Tensor]], terms: int) -> LocalError:
    recorded = one.tensor
    native, reference = (side[one.number].reshape(recorded.shape) for side in must)
    if recorded.is_floating_point() or recorded.is_complex():
        return measure(one.slot, recorded, native.to(recorded.dtype), reference, Rounding(float(terms)))
    return measure_exact(one.slot, recorded, native.to(recorded.dtype))
