"""One step of all ranks as one recording: their calls in one order, their values and memory side by side.

Theory of operation
    The ids of each rank's records are offset, so that no two ranks share one. Calls are numbered in their common order
    (`Interleaving`). So code that reads the data flow of a recording reads that of all ranks. `origin` leads back.

    The rank that is furthest behind runs its next call, so that calls of one place are near each other. At a transfer a
    rank waits for all participants; at a receive, until the message was sent. If all ranks wait (each posts a receive
    before it sends), they go on until a call reads the memory that is to be received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...dump import Call, RankDump
from ...dump.index.source import Source
from ...dump.index.tables import Tables
from ...store import records as r
from ...store.argument_trees import input_ids, result_ids, slots, with_leaves
from ...store.op_names import WAIT_TENSOR, read_inputs
from ...store.records import TREE_VALUE, Tree
from ..flow.data_flow import moment_of_record
from ..flow.flat_memory import RankWithParts
from ..meetings.meeting_points import attendance_of, is_message, others_at, ranks_of

At = tuple[int, int]  # number of a rank, id of a call

_REFERENCES: Final[dict[int, tuple[str, ...]]] = {  # the fields of each kind that are ids, except ids of calls
    r.TEXT: ("id",),
    r.OP: ("id",),
    r.FRAME: ("id", "file", "function"),
    r.STACK: ("id", "parent", "frame"),
    r.STORAGE: ("id", "device", "memory"),
    r.VALUE: ("id", "storage", "dtype"),
    r.BLOB: ("id",),
    r.DATA: ("value", "blob"),
    r.GRADIENT: ("value",),
    r.RANDOM: ("device", "blob"),
    r.GRAPH: ("id",),
    r.KERNEL: ("op", "graph", "code"),
    r.CALL: ("op", "stack", "module"),
}
_OF_CALLS: Final[dict[int, tuple[str, ...]]] = {  # the fields that are ids of calls
    r.CALL: ("id", "parent", "forward"),
    r.GRADIENT: ("call",),
    r.RANDOM: ("call",),
}
_OTHERS: Final = (
    r.SHARD,
    r.MODE,
    r.NOTE,
    r.STATISTICS,
    r.HASH,
    r.SAME,
    r.OPEN,
    r.SAVED,
    r.PACKED,
    r.FETCHED,
    r.OPTIMIZER_GROUPS,
    r.PARAMETERS,
    r.STAGE,
)
_KINDS: Final = (*_REFERENCES, *_OTHERS)
_ON_RANK: Final = " on rank "
_IN_EXTRA: Final = ("local", "memory")  # keys of a value's `extra` that name other values
_THREADS: Final = 1 << 16  # most threads of a rank


class _JoinedSource(Source):
    """The files of all ranks."""

    def __init__(self, joined: JoinedRank, lead: RankDump) -> None:
        super().__init__(lead.directory, lead.source.verify)
        self._joined = joined

    def read(self, tables: Tables, blob: r.Blob, start: int, stop: int) -> NDArray[np.uint8]:
        place, id = divmod(blob.id, self._joined.spread)
        rank = list(self._joined.ranks.values())[place]
        return rank.source.read(rank.tables, rank.tables.blobs[id], start, stop)

    def lost_blobs(self, tables: Tables) -> frozenset[int]:
        spread, ranks = self._joined.spread, self._joined.ranks.values()
        return frozenset(n * spread + id for n, one in enumerate(ranks) for id in one.source.lost_blobs(one.tables))


class JoinedCall(Call):
    """A call of one of the ranks."""

    __slots__ = ()

    def read_value_ids(self) -> set[int]:
        rank = self._rank
        assert isinstance(rank, JoinedRank)
        trees = read_inputs(self._tables.op(self._record.op), self._record, rank.number_of(self._record.id))
        return {value for tree in trees for _, value in slots(tree, "")}


class JoinedRank(RankWithParts):
    """All ranks of one step, as one recording.

    Attributes:
        ranks: the recordings, by rank.
        spread: the offset of the ids of each rank from those of the previous rank.
        meetings: the calls of each transfer in the order of its group, by id of each of them.
    """

    def __init__(self, ranks: Mapping[int, RankDump]) -> None:
        """Join ranks of one step; some may have values for the parts of their flat memory."""
        lead = next(iter(ranks.values()))
        RankDump.__init__(self, lead.directory, lead.step, lead.rank)
        self.ranks = dict(ranks)
        self.lead = lead
        self.spread = 1 + max(map(_most, ranks.values()))
        self.source = _JoinedSource(self, lead)
        found = Interleaving(ranks)
        self._order = found.order
        self._ids: dict[At, int] = {at: place for place, at in enumerate(found.order, 1)}
        self.meetings = {
            self._ids[at]: tuple(self._ids[one] for one in meeting.calls) for at, meeting in found.meetings.items()
        }
        self._brought = set(_brought(ranks, found.meetings))
        places = enumerate(ranks.values())
        self.parts = {
            place * self.spread + id: tuple(place * self.spread + part for part in parts)
            for place, rank in places
            if isinstance(rank, RankWithParts)
            for id, parts in rank.parts.items()
        }

    @property
    def where(self) -> str:
        """Path, step and ranks, as errors name them."""
        return f"{self.directory.parent.parent} (step {self.step}, {len(self.ranks)} ranks together)"

    @cached_property
    def tables(self) -> Tables:
        return self.lead.source.changed_tables(self.where, self._records(), _KINDS)

    def _records(self) -> Iterator[tuple[Any, ...]]:
        for place, (number, rank) in enumerate(self.ranks.items()):
            moved = place * self.spread
            move = _moving(moved)
            call_id = self._numbering(number)
            for record in _records_of(rank.tables):
                kind = record[0]
                changed: dict[str, Any] = {name: move(getattr(record, name)) for name in _REFERENCES.get(kind, ())}
                changed |= {name: call_id(getattr(record, name)) for name in _OF_CALLS.get(kind, ())}
                if isinstance(record, r.Call):
                    changed |= _trees(record, move) | {"thread": record.thread + place * _THREADS}
                elif isinstance(record, r.Value):
                    changed["extra"] = _extra(record.extra, move)
                    if (number, *moment_of_record(record)) in self._brought:
                        changed["flags"] = record.flags & ~r.UNDEFINED  # even if the program never waited for it
                elif isinstance(record, r.Gradient) and place:
                    changed["name"] = named_on(record.name, number)
                yield record._replace(**changed)

    def _numbering(self, number: int) -> Callable[[int], int]:
        return lambda id: self._ids.get((number, id), 0)

    def call_at(self, position: int) -> Call:
        return JoinedCall(self, self.tables.calls[position])

    # -- back to the ranks -------------------------------------------------------------------------------------------

    def number_of(self, call: int) -> int:
        return self._order[call - 1][0]

    def id_of(self, number: int, own: int) -> int:
        """Return the id of a rank's call in this recording."""
        return self._ids[number, own]

    def origin(self, id: int) -> Call:
        """Return a call as its rank recorded it."""
        number, own = self._order[id - 1]
        return self.ranks[number].call(own)

    def rank_of_value(self, id: int) -> int:
        """Return the rank of a value."""
        return list(self.ranks)[id // self.spread]

    def value_on(self, number: int, id: int) -> int:
        """Return the id of a rank's value in this recording."""
        return list(self.ranks).index(number) * self.spread + id

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(id(self))


def named_on(name: str, number: int) -> str:
    """Return a name with its rank, for ranks other than the first."""
    return f"{name}{_ON_RANK}{number}"


def own_name(name: str) -> str:
    """Return the name without its rank."""
    return name.rpartition(_ON_RANK)[0] if _ON_RANK in name else name


def origin_of(call: Call) -> Call:
    """Return a call as its rank recorded it; without joined ranks, the call itself."""
    rank = call.rank
    return rank.origin(call.id) if isinstance(rank, JoinedRank) else call


def _brought(ranks: Mapping[int, RankDump], meetings: Iterable[At]) -> Iterator[tuple[int, int, int]]:
    """Yield rank, storage and version of what transfers bring, also of what was seen before the program waited."""
    storages: set[tuple[int, int]] = set()
    for number, id in meetings:
        for value in result_ids(ranks[number].call(id).record):
            moment = moment_of_record(ranks[number].tables.values[value])
            storages.add((number, moment[0]))
            yield (number, *moment)
    for number, rank in ranks.items():
        waits = {op.id for op in rank.tables.ops.records() if op.op == WAIT_TENSOR}
        for call in rank.tables.calls if waits else ():
            for value in input_ids(call) if call.op in waits else ():
                moment = moment_of_record(rank.tables.values[value])
                if moment[0] and (number, moment[0]) in storages:
                    yield (number, *moment)


def _most(rank: RankDump) -> int:
    """Return the greatest id of a rank."""
    tables = rank.tables
    kinds = (tables.texts, tables.ops, tables.frames, tables.stacks, tables.storages, tables.values, tables.blobs)
    return max(max(kind, default=0) for kind in kinds)


def _records_of(tables: Tables) -> Iterator[Any]:
    yield from (r.Text(r.TEXT, id, text) for id, text in tables.texts.items())
    known: tuple[Iterable[Any], ...] = (
        tables.ops.records(), tables.frames.records(), tables.stacks.records(), tables.storages.records(),
        tables.values.records(), tables.blobs.records(), tables.data.records(),
        tables.gradients, tables.random.records(), tables.calls,
    )  # fmt: skip
    for records in known:
        yield from records


def _moving(moved: int) -> Callable[[int], int]:
    return lambda id: id + moved if id else 0


def _trees(record: r.Call, move: Callable[[int], int]) -> dict[str, Any]:
    """Return the fields of a call that hold trees, with the new ids of values."""

    def leaf(tree: Tree) -> Tree:
        is_value = type(tree) is tuple and tree[0] == TREE_VALUE
        return (TREE_VALUE, move(tree[1])) if is_value else tree

    found: dict[str, Any] = {
        "args": [with_leaves(tree, leaf) for tree in record.args],
        "kwargs": record.kwargs and {name: with_leaves(tree, leaf) for name, tree in record.kwargs.items()},
        "outputs": with_leaves(record.outputs, leaf),
    }
    if record.written is not None:
        found["written"] = [
            tree if place % 2 == 0 else with_leaves(tree, leaf) for place, tree in enumerate(record.written)
        ]
    return found


def _extra(extra: dict[str, Any] | None, move: Callable[[int], int]) -> dict[str, Any] | None:
    if not extra:
        return extra
    found = dict(extra)
    for key in _IN_EXTRA:
        if isinstance(found.get(key), int):
            found[key] = move(found[key])
    if "parts" in found:
        found["parts"] = {name: move(id) if isinstance(id, int) else id for name, id in found["parts"].items()}
    return found


@dataclass(frozen=True, slots=True)
class Meeting:
    """The calls of one transfer, in the order of the group; for a message the sender's comes first."""

    calls: tuple[At, ...]
    is_message: bool


class Interleaving:
    """The calls of some ranks in one order.

    Attributes:
        order: each call, with its rank.
        meetings: the transfer that a call is part of; transfers with unknown participants are left out.
    """

    def __init__(self, ranks: Mapping[int, RankDump]) -> None:
        self.order: list[At] = []
        self.meetings: dict[At, Meeting] = {}
        self._attendance = {number: attendance_of(rank) for number, rank in ranks.items()}
        self._ranks = {number: _Rank(rank) for number, rank in ranks.items()}
        self._find()
        self._posted: set[At] = set()
        while any(rank.left or rank.waiting for rank in self._ranks.values()):
            if not self._advance(eager=False) and not self._advance(eager=True):
                self._give_up()

    def _find(self) -> None:
        """Find the calls that meet."""
        for number, known in self._attendance.items():
            for part in known.parts:
                if not set(ranks_of(part.key)) <= self._ranks.keys():
                    continue
                others = others_at(part, number, self._attendance)
                if others is not None:
                    met = {**others, number: part.call}
                    calls = tuple((rank, met[rank]) for rank in ranks_of(part.key))
                    call = self._ranks[number].recording.call(part.call)
                    self.meetings[number, part.call] = Meeting(calls, is_message(call.op))

    def _advance(self, *, eager: bool) -> bool:
        """Run the next call of the rank that is furthest behind and can run; return False if none can."""
        for number, rank in sorted(self._ranks.items(), key=lambda one: -len(one[1].left) / one[1].count):
            call = rank.next(eager=eager)
            if call is not None:
                self._run(number, rank, call)
                return True
        settled = [self._settle_all(number, rank) for number, rank in self._ranks.items()]
        return any(settled)

    def _run(self, number: int, rank: _Rank, call: int) -> None:
        at = number, call
        meeting = self.meetings.get(at)
        rank.left.pop()
        self._posted.add(at)
        if meeting is None or (meeting.is_message and meeting.calls[0] == at):
            self.order.append(at)
        else:
            rank.wait_for(call)
        if meeting is not None:
            self._settle(meeting)

    def _settle(self, meeting: Meeting) -> None:
        """Put the calls of a transfer next to each other once all its ranks have come to it."""
        if all(at in self._posted for at in meeting.calls):
            for number, id in meeting.calls:
                if self._ranks[number].waiting.pop(id, None) is not None:
                    self.order.append((number, id))

    def _settle_all(self, number: int, rank: _Rank) -> bool:
        """Complete the transfers of a rank that have arrived; return True if there were any."""
        before = len(rank.waiting)
        for id in list(rank.waiting):
            self._settle(self.meetings[number, id])
        return len(rank.waiting) < before

    def _give_up(self) -> None:
        """Complete all transfers that wait, as it is unknown what they wait for."""
        for number, rank in self._ranks.items():
            for id in list(rank.waiting):
                self.order.append((number, id))
                meeting = self.meetings.get((number, id))
                for at in () if meeting is None else meeting.calls:
                    self.meetings.pop(at, None)
                del rank.waiting[id]


class _Rank:
    def __init__(self, recording: RankDump) -> None:
        self.recording = recording
        self.left = list(range(len(recording.tables.calls) - 1, -1, -1))
        self.count = max(1, len(self.left))
        self.waiting: dict[int, set[int]] = {}  # storages to which a transfer brings something, by call
        self._values = recording.tables.values
        self._ids = recording.tables.calls.column("id").tolist()

    def next(self, *, eager: bool) -> int | None:
        """Return the id of the next call if it can run."""
        if not self.left or (self.waiting and not eager):
            return None
        if self.waiting:
            record = self.recording.tables.calls[self.left[-1]]
            seen = {self._values[number].storage for number in (*input_ids(record), *result_ids(record))}
            if any(seen & storages for storages in self.waiting.values()):
                return None
        return int(self._ids[self.left[-1]])

    def wait_for(self, id: int) -> None:
        found = self.recording.call(id).result_values()
        self.waiting[id] = {value.storage for _, value in found} - {0}
