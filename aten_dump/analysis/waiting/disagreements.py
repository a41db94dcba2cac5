"""The first collective of each group for which ranks ask differently, or that some of them have left out.

Theory of operation
    Ranks of a group begin the same collectives in the same order. As long as counts and digests of a step are equal
    on all of them nothing more is read; where they are not, one rank of each kind is read again, and the first
    collective that differs is found. A rank that has ended a step with fewer than others began in it has left some out.
    Ranks that are still in the step may begin the rest: see `open_meetings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .meetings_begun import BegunStep, Key, Meet

Steps = Mapping[int, Mapping[int, BegunStep]]  # by step and rank
Read = Callable[[int, int, Key], Sequence[Meet]]  # of a step and rank, all of a key


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A collective for which ranks do not ask alike."""

    key: Key
    step: int
    number: int
    asked: tuple[tuple[Meet | None, tuple[int, ...]], ...]  # with the ranks that do; None: they left it out

    @property
    def unix_ns(self) -> int:
        """When it was begun."""
        return min(meet.begun_unix_ns for meet, _ in self.asked if meet is not None)

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that differ from most; all of them where nobody can say who is right."""
        sizes = sorted(len(ranks) for _, ranks in self.asked)
        if sizes[-1] == sizes[-2]:
            return tuple(sorted(rank for _, ranks in self.asked for rank in ranks))
        return tuple(sorted(rank for _, ranks in self.asked if len(ranks) < sizes[-1] for rank in ranks))


def disagreements(steps: Steps, read: Read) -> Iterator[Disagreement]:
    """Yield the first one of each group, in order of steps."""
    done: set[Key] = set()
    for step, ranks in sorted(steps.items()):
        keys = {key: None for begun in ranks.values() for key in begun.counts if not key.is_message}
        for key in keys:
            if key in done:
                continue
            kinds: dict[tuple[int, bytes], list[int]] = {}
            for rank in key.ranks:
                if rank in ranks:
                    kinds.setdefault(ranks[rank].counts.get(key, (0, b"")), []).append(rank)
            found = _first(key, step, ranks, kinds, read) if len(kinds) > 1 else None
            if found is not None:
                done.add(key)
                yield found


def _first(
    key: Key, step: int, ranks: Mapping[int, BegunStep], kinds: Mapping[tuple[int, bytes], list[int]], read: Read
) -> Disagreement | None:
    sequences = {count: read(step, alike[0], key) if count[0] else () for count, alike in kinds.items()}
    for number in range(max(map(len, sequences.values()))):
        asked: dict[str | None, tuple[Meet | None, list[int]]] = {}
        for count, alike in kinds.items():
            meet = sequences[count][number] if number < len(sequences[count]) else None
            for rank in alike:
                if meet is not None or (ranks[rank].committed and not ranks[rank].ended_by):
                    asked.setdefault(None if meet is None else meet.asks, (meet, []))[1].append(rank)
        if len(asked) > 1 and not _worked(key, asked):
            return Disagreement(key, step, number, tuple((meet, tuple(alike)) for meet, alike in asked.values()))
    return None


def _worked(key: Key, asked: Mapping[str | None, tuple[Meet | None, list[int]]]) -> bool:
    """Return True if ranks gave tensors of unlike shapes to a gather, which a backend may allow, and it ended."""
    meets = [meet for meet, _ in asked.values()]
    ended = all(meet is not None and meet.ended and "gather" in meet.asks for meet in meets)
    return ended and len({meet.shown.partition(" ")[0] for meet in meets if meet is not None}) == 1
