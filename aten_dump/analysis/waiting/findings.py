"""What keeps a run from going on, the cause first.

Theory of operation
    Certain causes come first, by time: ranks that ask for different collectives, that wait for each other in a circle,
    and that have ended or died. An error that came out of a collective is no cause where there is another one: ranks
    fail in a collective when one that was in it has died. Behind come ranks that others wait for and that live: *slow*
    while they go on or have not been waited for long, *stuck* after that.

A rank waits where it has begun what others have not. It is not waiting where its sign of life, newer than that, shows
it in a line of its own: it has started a collective and does something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Literal

from ...dump.shown.step_ranks import named
from .disagreements import Disagreement, Steps
from .meetings_begun import Key
from .open_meetings import OpenMeeting, is_delivered
from .rank_lives import ENDED, Life, last_call_text

Kind = Literal["apart", "cycle", "ended", "stuck", "transfer", "unwaited", "slow"]
_ORDER: Final[Mapping[Kind, int]] = dict(apart=0, cycle=0, ended=0, transfer=1, stuck=2, unwaited=3, slow=4)  # noqa: C408
_MOST_SHOWN: Final = 4  # meetings of a finding
_EXIT_OF_ITS_OWN: Final = ("closed", "exited")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that keeps ranks from going on, or that they do not agree in."""

    kind: Kind
    ranks: tuple[int, ...]  # on which it lies
    waiting: tuple[int, ...]  # ranks that it holds up
    unix_ns: int  # when it began; of a rank that ended, when it did at the latest
    text: str  # a sentence
    details: tuple[str, ...] = ()
    is_consequence: bool = False  # or may be one of another finding

    @property
    def is_fault(self) -> bool:
        """True unless it is a rank that is slow."""
        return self.kind != "slow"

    @property
    def row(self) -> dict[str, Any]:
        """It as plain values."""
        return {
            "kind": self.kind, "ranks": list(self.ranks), "waiting": list(self.waiting), "since_unix_ns": self.unix_ns,
            "text": self.text, "details": list(self.details), "may_follow_from_another": self.is_consequence,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Situation:
    """All that is known of a run."""

    lives: Mapping[int, Life]
    steps: Steps
    apart: Sequence[Disagreement]
    open: Sequence[OpenMeeting]
    now_unix_ns: int
    patience_s: float


def findings_of(known: Situation) -> list[Finding]:
    """Return what keeps a run from going on, the cause first."""
    graph = WaitGraph.of([m for m in known.open if not is_delivered(m)], known.lives)
    found = [_apart(one, known) for one in known.apart]
    found += [_cycle(ranks, graph, known) for ranks in graph.cycles()]
    found += _ends(graph, known)
    found += _died(graph, known)
    found += [*_in_transfer(known), *_tags(known)]
    found += _unwaited(known)
    is_said = any(one.is_fault and not one.is_consequence for one in found)
    tags = {one.ranks for one in found if one.kind == "apart"}
    told = [one for one in found if one.kind != "cycle" or one.ranks not in tags]
    return sorted(told, key=lambda one: (is_said and one.is_consequence, _ORDER[one.kind], one.unix_ns))


def _apart(one: Disagreement, known: Situation) -> Finding:
    details = []
    for meet, ranks in one.asked:
        said = "left it out and ended the step" if meet is None else f"{meet.shown}, at {meet.where}"
        details.append(f"{named('rank', ranks)}: {said}{_in_module(meet.module if meet else '')}")
    waiting = {rank for m in known.open if m.key == one.key for rank in m.waiting}
    others = "" if len(one.minority) == sum(len(ranks) for _, ranks in one.asked) else " and the others"
    place = f"collective {one.number} of step {one.step} in {group_text(one.key)}"
    text = f"{_named(one.minority)}{others} do not ask for the same: {place}"
    return Finding("apart", one.minority, tuple(sorted(waiting)), one.unix_ns, text, tuple(details))


def _cycle(ranks: frozenset[int], graph: WaitGraph, known: Situation) -> Finding:
    meetings = graph.meetings_with(ranks, ranks)
    since = max(m.since_unix_ns for m in meetings)
    waiting = sorted({rank for m in graph.meetings for rank in m.waiting})
    text = f"{_named(ranks)} wait for each other, since {_clock(since)}"
    return Finding("cycle", tuple(sorted(ranks)), tuple(waiting), since, text, tuple(_open_lines(meetings, known)))


def _ends(graph: WaitGraph, known: Situation) -> Iterator[Finding]:
    """Yield the ranks that others wait for and that wait for none, those of which the same is said together."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    ends = graph.ends()
    moving = {rank for m in known.open if not m.missing for rank in m.waiting if _waits_in(known.lives.get(rank), m)}
    for rank in sorted(ends.keys() - moving):
        life = known.lives.get(rank)
        alike.setdefault(("absent", "", ends[rank]) if life is None else (*_like(life), ends[rank]), []).append(rank)
    for ranks in alike.values():
        held = ends[ranks[0]]
        life = known.lives.get(ranks[0])
        meetings = graph.meetings_with(ranks, held)
        since = min(m.since_unix_ns for m in meetings)
        words = "has recorded nothing" if life is None else life.words()
        text = f"{_named(held)} {_verb(held, 'waits', 'wait')} for {_named(ranks)}, which {_many(words, len(ranks))}"
        kind = _kind_of(life, since, known)
        when = since if life is None or kind in ("slow", "stuck") else life.ended_unix_ns
        shown = (*_open_lines(meetings, known), *_module_line(life))
        yield Finding(kind, tuple(ranks), tuple(sorted(held)), when, text, shown, bool(life and life.in_transfer))


def _died(graph: WaitGraph, known: Situation) -> Iterator[Finding]:
    """Yield the ranks that have ended, but in order, and that no rank waits for now."""
    ends = graph.ends()
    alike: dict[tuple[Any, ...], list[Life]] = {}
    # One that has ended in order is at fault where others have failed in a collective after that.
    failed = max((life.seen_unix_ns for life in known.lives.values() if life.in_transfer), default=0)
    for rank, life in sorted(known.lives.items()):
        in_order = life.kind in _EXIT_OF_ITS_OWN and life.ended_unix_ns >= failed
        if life.kind in ENDED and not in_order and rank not in ends:
            alike.setdefault(_like(life), []).append(life)
    for lives in alike.values():
        ranks = tuple(life.rank for life in lives)
        text = f"{_named(ranks)} {_many(lives[0].words(), len(ranks))}"
        when = min(life.ended_unix_ns for life in lives)
        yield Finding("ended", ranks, (), when, text, tuple(_module_line(lives[0])), lives[0].in_transfer)


def _in_transfer(known: Situation) -> Iterator[Finding]:
    """Yield what all ranks have begun and some wait for, for long: nobody is missing, and it does not end."""
    apart = {one.key for one in known.apart}
    for meeting in (meeting for meeting in known.open if meeting.key not in apart and not meeting.missing):
        last = max(meet.begun_unix_ns for meet in meeting.waiting.values())
        waiting = tuple(sorted(rank for rank in meeting.waiting if _waits_in(known.lives.get(rank), meeting)))
        agree = len({meet.asks for meet in meeting.waiting.values()}) == 1
        is_long = known.now_unix_ns - last >= known.patience_s * 1e9
        if waiting and agree and is_long and not is_delivered(meeting):
            text = f"all ranks have begun it, and it does not end: {meeting_text(meeting)}"
            lines = list(_open_lines([meeting], known))
            sender = meeting.key.ranks[0]
            if meeting.key.is_message and sender not in waiting:
                lines.append(f"rank {sender} does not wait for it: a Work that nobody keeps takes its message with it")
            yield Finding("transfer", meeting.key.ranks, waiting, last, text, tuple(lines))


def _waits_in(life: Life | None, meeting: OpenMeeting) -> bool:
    return life is not None and meeting.waiting[life.rank].call in (life.waits or ())


def _tags(known: Situation) -> Iterator[Finding]:
    """Yield messages that one rank sends under another tag than the other one receives."""
    sides: dict[tuple[str, tuple[int, ...]], dict[int, OpenMeeting]] = {}
    for meeting in known.open:
        if meeting.key.is_message and len(meeting.key.ranks) == len(meeting.waiting) + 1 == 2 and meeting.missing:
            sides.setdefault((meeting.key.group, meeting.key.ranks), {}).setdefault(min(meeting.waiting), meeting)
    for (_, ranks), meetings in sides.items():
        if len(meetings) == 2:
            sent, received = meetings[ranks[0]], meetings[ranks[1]]
            text = (
                f"rank {ranks[0]} sends under tag {sent.key.tag}, and rank {ranks[1]} receives tag {received.key.tag}"
            )
            since = max(sent.since_unix_ns, received.since_unix_ns)
            yield Finding("apart", ranks, ranks, since, text, tuple(_open_lines([sent, received], known)))


def _unwaited(known: Situation) -> Iterator[Finding]:
    """Yield the ranks that have waited for fewer of their collectives than others have, in the first such step."""
    for step, ranks in sorted(known.steps.items()):
        whole = [begun for begun in ranks.values() if begun.committed and not begun.ended_by]
        some = [begun for begun in whole if begun.unwaited]
        if some and len(some) < len(whole):
            most = max(some, key=lambda begun: begun.unwaited)
            numbers = tuple(begun.rank for begun in some)
            text = (
                f"{_named(numbers)} did not wait for the end of {most.unwaited} of the collectives of step {step}, and "
                f"the others did; the first is at {most.unwaited_at or 'no known line'}"
            )
            yield Finding("unwaited", numbers, (), most.begun_unix_ns, text)
            return


def _kind_of(life: Life | None, since: int, known: Situation) -> Kind:
    if life is not None and life.kind in ENDED:
        return "ended"
    last = life.last.unix_ns if life is not None and life.last is not None else 0
    patience = known.patience_s * 1e9
    is_long = known.now_unix_ns - since >= patience and known.now_unix_ns - last >= patience
    return "stuck" if is_long else "slow"


def _like(life: Life) -> tuple[Any, ...]:
    """Return a key that is the same for ranks that share a finding."""
    last = None if life.last is None else (life.last.name, life.last.where)
    if life.in_transfer:  # errors that name addresses
        return life.kind, "", life.line, "", "", last
    return life.kind, life.error, life.line, life.inside, life.module, last


def _open_lines(meetings: Sequence[OpenMeeting], known: Situation) -> Iterator[str]:
    for meeting in meetings[:_MOST_SHOWN]:
        yield meeting_text(meeting)
        places: dict[str, list[int]] = {}
        for rank, meet in sorted(meeting.waiting.items()):
            places.setdefault(f"{meet.where or 'no known line'}{_in_module(meet.module)}", []).append(rank)
        seconds = max(0.0, (known.now_unix_ns - meeting.since_unix_ns) / 1e9)
        for where, ranks in places.items():
            since = f"since {_clock(meeting.since_unix_ns)} ({seconds:.1f} s)"
            yield f"  begun and not ended by {named('rank', ranks)}, {since}, at {where}"
        if meeting.missing:
            steps = {rank: life.step for rank in meeting.missing if (life := known.lives.get(rank)) is not None}
            behind = {step: [rank for rank in steps if steps[rank] == step] for step in set(steps.values())}
            for step, ranks in behind.items():
                place = "nothing on file" if step is None else f"last on file: step {step}"
                yield f"  not begun by {named('rank', ranks)} ({place})"
    if len(meetings) > _MOST_SHOWN:
        yield f"and {len(meetings) - _MOST_SHOWN} more"


def meeting_text(meeting: OpenMeeting) -> str:
    """Return an open collective or message in words."""
    key, shown = meeting.key, meeting.first.shown
    if key.is_message:
        between = f"from {named('rank', key.ranks[:-1])} to rank {key.ranks[-1]}"
        return f"message {meeting.number} {between}, tag {key.tag} (group {key.group}): {shown}"
    return f"collective {meeting.number} of step {meeting.step} in {group_text(key)}: {shown}"


def group_text(key: Key) -> str:
    """Return a group as ``group 0 (ranks 0-3)``."""
    return f"group {key.group} ({named('rank', key.ranks)})"


def _module_line(life: Life | None) -> Iterator[str]:
    if life is not None and life.kind in ENDED and life.last is not None and life.kind in ("raised", "exited"):
        yield last_call_text(life.last)


def _in_module(module: str) -> str:
    return f", in module {module}" if module else ""


def _named(ranks: Iterable[int]) -> str:
    return named("rank", ranks)


def _verb(ranks: Iterable[int], one: str, many: str) -> str:
    return one if len(list(ranks)) == 1 else many


def _many(words: str, count: int) -> str:
    """Return a clause about one rank as one about several."""
    verb, space, rest = words.partition(" ")
    if count == 1:
        return words
    return {"is": "are", "has": "have", "its": "their"}.get(verb, verb) + space + rest


def _clock(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, timezone.utc).strftime("%H:%M:%S.%f")[:-3] + " UTC"


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Which rank waits for which."""

    edges: Mapping[int, frozenset[int]]
    meetings: tuple[OpenMeeting, ...]  # those in which a rank waits for another one

    @classmethod
    def of(cls, meetings: Iterable[OpenMeeting], lives: Mapping[int, Life]) -> WaitGraph:
        """Find who waits, of what is open."""
        edges: dict[int, set[int]] = {}
        used = []
        for meeting in meetings:
            waiting = [rank for rank in meeting.waiting if _is_waiting(lives.get(rank), meeting, rank)]
            if meeting.missing and waiting:
                used.append(meeting)
                for rank in waiting:
                    edges.setdefault(rank, set()).update(meeting.missing)
        return cls({rank: frozenset(others) for rank, others in edges.items()}, tuple(used))

    def cycles(self) -> list[frozenset[int]]:
        """Return the sets of ranks that wait for each other, each of which reaches all others of its set."""
        alike = {others: self._reached(rank) for rank, others in self.edges.items()}
        reach = {rank: alike[others] for rank, others in self.edges.items()}
        found = {
            frozenset(other for other in there if rank in reach.get(other, ()))
            for rank, there in reach.items()
            if rank in there
        }
        return sorted(found, key=min)

    def ends(self) -> dict[int, frozenset[int]]:
        """Return each rank that others wait for and that waits for none, with those that it holds up."""
        alike: dict[frozenset[int], set[int]] = {}
        for rank, others in self.edges.items():
            alike.setdefault(others, set()).add(rank)
        held: dict[int, set[int]] = {}
        for ranks in alike.values():
            for other in self._reached(min(ranks)) - self.edges.keys():
                held.setdefault(other, set()).update(ranks)
        return {rank: frozenset(ranks) for rank, ranks in held.items()}

    def meetings_with(self, missing: Iterable[int], waiting: Iterable[int]) -> list[OpenMeeting]:
        """Return those in which one of some ranks is missing and one of others waits."""
        absent, there = set(missing), set(waiting)
        return [m for m in self.meetings if absent.intersection(m.missing) and there.intersection(m.waiting)]

    def _reached(self, rank: int) -> set[int]:
        """Return the ranks that it depends on; of a thousand ranks most wait for the same ones, which are looked at
        once.
        """
        found: set[int] = set()
        looked_at: set[frozenset[int]] = set()
        left = [self.edges.get(rank, frozenset())]
        while left:
            others = left.pop()
            if others not in looked_at:
                looked_at.add(others)
                left += {self.edges[other] for other in others - found if other in self.edges}
                found |= others
        return found


def _is_waiting(life: Life | None, meeting: OpenMeeting, rank: int) -> bool:
    meet = meeting.waiting[rank]
    if life is None or life.kind == "absent":
        return True
    if life.kind in ENDED - {"stopped", "silent"}:
        return False
    if life.waits is None or life.pulse_unix_ns < meet.begun_unix_ns:
        return True
    return meet.call in life.waits if life.waits else bool(life.inside) or not life.line
