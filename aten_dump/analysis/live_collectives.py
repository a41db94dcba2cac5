"""Which collectives each rank has begun and ended, and where ranks of a group do not ask for the same.

Theory of operation
    A collective is on file from its beginning (`Open`), its end follows. Ranks of a group must begin the same
    collectives in the same order: so the k-th of a group since the step in which the last rank is, is held against the
    k-th of the other ranks. A rank that has ended fewer than it began hangs, or is about to wait; one that has not
    begun what others wait for is what they wait for. That one may have nothing of the others' step on file, or nothing
    at all: what hangs as a rule stands before the first op of a step. The dump may be written while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..dump import Call, RankDump, ReprRef, Value
from .meetings.process_groups import group_of, is_message, leaves

# Collectives for which all ranks give tensors of the same shapes; for scatter, gather and all-to-all they may differ.
_SAME_SHAPES: Final = ("allreduce", "all_reduce", "broadcast", "reduce", "allgather", "all_gather", "barrier")


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank asked for it."""

    op: str
    tensors: tuple[str, ...]  # "f32[4, 8]", in the order of the arguments
    reduction: str  # "SUM"; empty where nothing is reduced
    ended: bool

    def __str__(self) -> str:
        return " ".join((self.op, *self.tensors, *filter(None, [self.reduction])))

    def asks_for(self) -> tuple[Any, ...]:
        """Return what must be the same on all ranks."""
        alike = any(name in self.op for name in _SAME_SHAPES)
        return self.op, self.tensors if alike else (), self.reduction


@dataclass(slots=True)
class Group:
    """The collectives of one process group, as far as they are on file."""

    name: str
    ranks: tuple[int, ...]
    begun: dict[int, list[Collective]] = field(default_factory=dict)  # by rank, in order
    receiving: dict[int, list[Collective]] = field(default_factory=dict)  # by rank: messages that have not come

    def mismatches(self) -> Iterator[str]:
        """Yield what ranks do not agree in: the first collective that differs, and who waits for whom."""
        for number in range(max(map(len, self.begun.values()), default=0)):
            asked = {rank: found[number] for rank, found in self.begun.items() if number < len(found)}
            if len({one.asks_for() for one in asked.values()}) > 1:
                each = "; ".join(f"rank {rank}: {one}" for rank, one in sorted(asked.items()))
                yield f"collective {number} of {self} does not match: {each}"
                return
            missing = sorted(set(self.begun) - set(asked))
            waiting = sorted(rank for rank, one in asked.items() if not one.ended)
            if missing and waiting:
                yield (
                    f"collective {number} of {self}, {asked[waiting[0]]}: {_ranks(waiting)} begun it and not ended it, "
                    f"{_ranks(missing)} not begun it"
                )
                return

    def __str__(self) -> str:
        return f"group {self.name} (ranks {', '.join(map(str, self.ranks))})"


def collectives_of(ranks: Sequence[RankDump], recording: Iterable[int] = ()) -> list[Group]:
    """Return the collectives of some steps of several ranks, by group.

    Args:
        ranks: the steps of each rank in order, from one that all of them have begun.
        recording: the numbers of all ranks that record, those too that have no step on file yet.
    """
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    for rank in ranks:
        for call in sorted(rank.calls, key=lambda call: call.id):
            found = group_of(call)
            if found is None:
                continue
            group = groups.setdefault((found.name, found.ranks), Group(found.name, found.ranks))
            if not is_message(call.op):
                group.begun.setdefault(rank.rank, []).append(_collective(call))
            elif not call.finished:
                group.receiving.setdefault(rank.rank, []).append(_collective(call))
    known = {*recording, *(rank.rank for rank in ranks)}
    for group in groups.values():  # a rank of the group may have begun none
        for number in known.intersection(group.ranks):
            group.begun.setdefault(number, [])
    return list(groups.values())


def _collective(call: Call) -> Collective:
    items = list(leaves(call.inputs))
    tensors = tuple(f"{item.dtype_name}{list(item.shape)}" for item in items if isinstance(item, Value))
    said = [item.text if isinstance(item, ReprRef) else item for item in items if isinstance(item, (ReprRef, str))]
    return Collective(call.op or "", tensors, " ".join(said).replace("ReduceOp.", ""), call.finished)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]} has" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))} have"
