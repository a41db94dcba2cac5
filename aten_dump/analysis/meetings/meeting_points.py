"""Where ranks meet: the call of each rank that takes part in the same collective, or in the same message.

Theory of operation
    Ranks of a group begin the same collectives in the same order, so the k-th of a group in a step meets the k-th of
    the others. Messages are counted by sender, receiver and tag. Where ranks have not begun equally many (a step that
    was cut, a rank that paused), nobody knows which meets which: then none of that group meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from ...dump import Call
from ...dump.handles import Recording
from ...store.op_names import TRANSFER_NAMESPACES, WAIT_TENSOR, read_op_name
from ..evidence.findings import Key, Part

_BETWEEN_TWO: Final = ("send", "recv")  # from one rank to another: the others of the group have no part in it

_ROOTED: Final = ("broadcast", "scatter")  # one sends, all others receive
_TO_ROOT: Final = ("reduce_", "gather")


@dataclass(slots=True)
class Attendance:
    """The meetings of one rank in one step, in execution order."""

    rank: int
    parts: list[Part] = field(default_factory=list)
    by_call: dict[int, Part] = field(default_factory=dict)
    by_key: dict[Key, list[Part]] = field(default_factory=dict)

    def add(self, key: Key, call: int, *, sends: bool, receives: bool) -> None:
        known = self.by_key.setdefault(key, [])
        part = Part(key, len(known), call, sends, receives)
        known.append(part)
        self.parts.append(part)
        self.by_call[call] = part


def attendance_of(rank: Recording) -> Attendance:
    """Return the meetings of a rank."""
    found = Attendance(rank.rank)
    for call in transfers(rank):
        group = group_of(call)
        if group is None or rank.rank not in group.ranks or len(group.ranks) < 2:
            continue
        key, sends, receives = _role(call, group, rank.rank)
        if key is not None:
            found.add(key, call.id, sends=sends, receives=receives)
    return found


def others_at(part: Part, mine: int, all_ranks: Mapping[int, Attendance]) -> dict[int, int] | None:
    """Return the calls of the other ranks that take part in a meeting, by rank; None where that is not known.

    Args:
        part: of rank `mine`.
        mine: that rank.
        all_ranks: of the same step, by rank.
    """
    count = len(all_ranks[mine].by_key[part.key])
    found: dict[int, int] = {}
    for rank in ranks_of(part.key):
        if rank != mine:
            known = all_ranks[rank].by_key.get(part.key, []) if rank in all_ranks else []
            if len(known) != count:
                return None
            found[rank] = known[part.number].call
    return found


def ranks_of(key: Key) -> tuple[int, ...]:
    """Return the ranks that meet."""
    ranks = key[1]
    assert isinstance(ranks, tuple)
    return ranks


def root_of(call: Call, group: RankGroup) -> int | None:
    """Return the global rank that a collective has for its root; None where it has none, or an unknown one."""
    names = call.arguments
    args = call.inputs[0]
    for name in ("root_rank", "src", "dst"):
        if name in names and names.index(name) < len(args):
            number = args[names.index(name)]
            return group.ranks[number] if isinstance(number, int) and number < len(group.ranks) else None
    return None


def transfers(rank: Recording) -> Iterator[Call]:
    """Yield the collectives and messages of a step, and the waits for them."""
    ops = {op.id for op in rank.tables.ops.records() if read_op_name(op.op).namespace in TRANSFER_NAMESPACES}
    for position, record in enumerate(rank.tables.calls):
        if record.op in ops:
            yield rank.call_at(position)


def _role(call: Call, group: RankGroup, rank: int) -> tuple[Key | None, bool, bool]:
    """Return the key of a meeting, and whether this rank sends and receives in it."""
    name = read_op_name(call.op).name
    root = root_of(call, group)
    if is_message(call.op):
        if root is None:
            return None, False, False  # from whoever comes first
        sends = name.startswith("send")
        pair = (rank, root) if sends else (root, rank)
        args, names = call.inputs[0], call.arguments
        tag = args[names.index("tag")] if "tag" in names and names.index("tag") < len(args) else 0
        return (group.name, pair, str(tag)), sends, not sends
    key: Key = (group.name, group.ranks)
    if root is None:
        return key, True, True
    if name.startswith(_ROOTED):
        return key, rank == root, rank != root or name.startswith("scatter")
    if name.startswith(_TO_ROOT):
        return key, True, rank == root
    return key, True, True


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A process group: its name, the global ranks in it, and what its maker calls it."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


def group_of(call: Call) -> RankGroup | None:
    """Return the group of ranks that a call meets; None for a call that meets none."""
    if call.kind != "aten":
        return None
    name = read_op_name(call.op)
    if name.namespace not in TRANSFER_NAMESPACES or name.without_overload == WAIT_TENSOR:
        return None
    for item in leaves(call.inputs):
        if isinstance(item, dict) and "group" in item and isinstance(item.get("ranks"), (list, tuple)):
            return RankGroup(str(item["group"]), _shared(tuple(item["ranks"])), str(item.get("description", "")))
    return None


@lru_cache(256)
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return one tuple for equal ones: each of a thousand ranks has a thousand numbers for each of its collectives."""
    return ranks


def is_message(op: str) -> bool:
    """Return True if an op sends to one rank, or receives from one."""
    return read_op_name(op).name.startswith(_BETWEEN_TWO)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield tensors, literals and the dicts that stand for objects."""
    if isinstance(tree, dict) and "ranks" not in tree:
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree
