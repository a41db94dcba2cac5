"""The collectives and messages that one rank has begun in one step.

Theory of operation
    A collective or message is on file from its beginning (`Open`); its end follows. Of most of them nobody asks more
    than how many there are and whether they are those of the other ranks: a count and a digest for each group. Only
    those that have not ended are kept, and where ranks differ the step is read again (`Reading.key`). So what is held
    of a thousand ranks is small, however long they ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from ...dump import Call, RankDump, ReprRef, Value
from ...store import records
from ...store.op_names import TRANSFER_NAMESPACES, WAIT_TENSOR, read_op_name
from ..meetings.meeting_points import RankGroup, group_of, is_message, leaves, root_of

# Collectives for which all ranks give tensors of the same shapes; for scatter, gather and all-to-all they may differ.
_SAME_SHAPES: Final = ("allreduce", "all_reduce", "broadcast", "reduce", "allgather", "all_gather", "barrier")
_MOST_LINES: Final = 2  # of the program, for a call
_MARKS: Final = "profiler::"  # ops that compute nothing
_ENDED_EARLY: Final = ("exception", records.FAILED)  # codes of notes


class Key(NamedTuple):
    """What counts its collectives, or messages, on its own: those of equal numbers meet."""

    group: str
    ranks: tuple[int, ...]  # global; of a message sender and receiver
    tag: str | None = None  # None of a collective

    @property
    def is_message(self) -> bool:
        return self.tag is not None


@dataclass(frozen=True, slots=True)
class Meet:
    """A collective or message as one rank began it."""

    key: Key
    rank: int
    step: int
    number: int  # among those of its key, in the step
    asks: str  # what must be the same on all ranks
    shown: str  # "c10d::allreduce_ float32[8, 8] SUM"
    ended: bool
    begun_unix_ns: int
    call: int
    name: str
    where: str  # file:line in function, and its callers
    module: str


class LastCall(NamedTuple):
    """The last call that a rank is known to have ended."""

    name: str
    where: str
    unix_ns: int


@dataclass(frozen=True, slots=True)
class BegunStep:
    """What one rank has begun in one step."""

    rank: int
    step: int
    committed: bool
    begun_unix_ns: int
    counts: dict[Key, tuple[int, bytes]]  # how many, and a digest of what they ask for
    open: tuple[Meet, ...]  # that have not ended
    last: LastCall | None
    module: str  # the innermost that is open
    ended_by: str  # the note of an error that ended the recording in this step
    unwaited: int  # collectives whose end nobody waited for
    unwaited_at: str  # the line of the first of them
    seen: tuple[Meet, ...] = ()  # all of one key


class Reading(NamedTuple):
    """One step and rank to read; with a key, all that is begun of it is wanted too."""

    recording: RankDump
    key: Key | None = None

    @property
    def step(self) -> int:
        return self.recording.step

    @property
    def rank(self) -> int:
        return self.recording.rank


def read_begun(reading: Reading) -> BegunStep:
    """Read what one rank has begun in one step; nothing of the recording stays in memory."""
    rank = reading.recording.anew()
    header, tables = rank.header, rank.tables
    digests: dict[Key, tuple[int, xxhash.xxh3_64]] = {}
    still_open: list[Meet] = []
    seen: list[Meet] = []
    for call, group in _transfers(rank):
        key = _key_of(call, group)
        number, digest = digests.get(key) or (0, xxhash.xxh3_64())
        asks, shown = _asked(call, group, key)
        digest.update(f"{asks}\n".encode())
        digests[key] = number + 1, digest
        if key == reading.key or not call.finished:
            begun = header.start_unix_ns + call.record.start_ns
            meet = Meet(
                key, rank.rank, rank.step, number, asks, shown, call.finished, begun, call.id, call.name,
                _lines_of(call), call.module or "",
            )  # fmt: skip
            seen += [meet] if key == reading.key else []
            still_open += [] if call.finished else [meet]
    notes = {note.code: note for note in tables.notes}
    ended_by = next((notes[code].message for code in _ENDED_EARLY if code in notes), "")
    in_flight = notes.get("in_flight")
    return BegunStep(
        rank=rank.rank,
        step=rank.step,
        committed=rank.complete,
        begun_unix_ns=header.start_unix_ns,
        counts={key: (count, digest.digest()) for key, (count, digest) in digests.items()},
        open=tuple(still_open),
        last=_last_call(rank),
        module=_open_module(rank),
        ended_by=ended_by,
        unwaited=in_flight.count if in_flight is not None else 0,
        unwaited_at=_first_unwaited(rank) if in_flight is not None else "",
        seen=tuple(seen),
    )


def _transfers(rank: RankDump) -> Iterator[tuple[Call, RankGroup]]:
    """Yield the collectives and messages of a step in the order in which they began."""
    tables = rank.tables
    ops = [
        op.id
        for op in tables.ops.records()
        if read_op_name(op.op).namespace in TRANSFER_NAMESPACES and read_op_name(op.op).without_overload != WAIT_TENSOR
    ]
    for position in np.flatnonzero(np.isin(tables.calls.column("op"), ops)).tolist() if ops else ():
        call = rank.call_at(position)
        group = group_of(call)
        if group is not None:
            yield call, group


def _key_of(call: Call, group: RankGroup) -> Key:
    if not is_message(call.op):
        return Key(group.name, group.ranks)
    args, names, peer = call.inputs[0], call.arguments, root_of(call, group)
    tag = args[names.index("tag")] if "tag" in names and names.index("tag") < len(args) else 0
    if peer is None:  # from whoever comes first
        others = tuple(number for number in group.ranks if number != call.rank.rank)
        return Key(group.name, (*others, call.rank.rank), str(tag))
    sends = "send" in read_op_name(call.op).name
    return Key(group.name, (call.rank.rank, peer) if sends else (peer, call.rank.rank), str(tag))


def _asked(call: Call, group: RankGroup, key: Key) -> tuple[str, str]:
    """Return what all ranks must ask for alike, and the call as it is shown."""
    items = list(leaves(call.inputs))
    tensors = [f"{item.dtype_name}{list(item.shape)}" for item in items if isinstance(item, Value)]
    said = [item.text if isinstance(item, ReprRef) else item for item in items if isinstance(item, (ReprRef, str))]
    text = " ".join(said).replace("ReduceOp.", "")
    root = root_of(call, group)
    if root is not None and not key.is_message:
        text = f"{text} root {root}".strip()
    op = call.op or ""
    shown = " ".join((op, *tensors, *filter(None, [text])))
    if key.is_message:
        return " ".join(tensors), shown
    alike = any(name in op for name in _SAME_SHAPES)
    return " ".join((op, *(tensors if alike else ()), text)), shown


def _lines_of(call: Call) -> str:
    """Return the lines of the program in which a call is made, innermost first: a helper's line says little."""
    own = [frame for frame in call.stack if frame.user][:_MOST_LINES]
    return ", from ".join(map(str, own)) or call.where


def _last_call(rank: RankDump) -> LastCall | None:
    calls = rank.calls
    if not len(calls):
        return None
    columns = rank.tables.calls
    ends = columns.column("start_ns") + columns.column("duration_ns")
    marks = [op.id for op in rank.tables.ops.records() if op.op.startswith(_MARKS)]
    left_out = np.isin(columns.column("id"), list(rank.tables.unfinished)) | np.isin(columns.column("op"), marks)
    ends = np.where(left_out, -1, ends)
    at = int(ends.argmax())
    if ends[at] < 0:
        return None
    call = rank.call_at(at)
    return LastCall(call.name, _lines_of(call), rank.header.start_unix_ns + int(ends[at]))


def _open_module(rank: RankDump) -> str:
    found = [call for id in sorted(rank.tables.unfinished) if (call := rank.find(id)) is not None]
    return next((call.module or "" for call in reversed(found) if call.kind == "module"), "")


def _first_unwaited(rank: RankDump) -> str:
    """Return the line of the first collective whose result was never there: what it writes is undefined."""
    for call, _ in _transfers(rank):
        results: list[Any] = [value for _, value in call.result_values()]
        if any(value.undefined for value in results):
            return _lines_of(call)
    return ""
