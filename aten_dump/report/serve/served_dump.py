"""What is served: the sections of a report by name, made when they are asked for, of a dump that may still grow.

Theory of operation
    The outline comes from the two ends of each index, so that a page shows itself before any index is read. All else
    is a section with a name, made by the modules that make the file. Names are taken apart by one pattern: what does
    not match it, or is not in the dump, is not there; no text of a request ever becomes a path.

    Requests come in threads of their own. What a step-rank reads once and keeps must not be read by two threads at
    once, so each has locks: one for its index, one for the relations between calls and values. The latter take seconds
    for a million calls, in which the tree of calls can still be looked at. When more calls are held than allowed, those
    looked at longest ago go.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from ...dump import RankDump, open_dump
from ...errors import AtenDumpError
from ...store.writing.index_writer import INDEX_FILE
from ..html.payload.call_arguments import arguments_section
from ..html.payload.call_tree import tree_section
from ..html.payload.chunks import chunk_count
from ..html.payload.columns import Section
from ..html.payload.dump_answer import nonfinite_answer, rank_outline
from ..html.payload.histograms import histogram_section
from ..html.payload.saved_memory import saved_section
from ..html.payload.sections import Side, Subject, judged_sections, outline_section, value_ids
from ..html.payload.step_series import StepSeries
from ..html.payload.value_columns import uses_section, values_section

_STILL_SECONDS: Final = 5.0  # an index without an end that has not grown for so long is that of an interrupted step
_CONFIG: Final = ("level", "data", "io", "stacks", "sample", "trigger")

MOST_CALLS: Final = 2_500_000  # of all indexes that are held together

_NAME: Final = re.compile(r"(target|baseline)/(\d{1,9})/(\d{1,9})/([a-z]+)(?:/(\d{1,9}))?")
_FRESH_SECONDS: Final = 1.0
Place = tuple[Side, int, int]


class ServedDump:
    """A subject whose sections are made when they are asked for."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.opened = OpenedRanks()
        self._lock = Lock()
        self._looked = 0.0
        self._places: dict[Place, RankDump] = {}
        self._facts: dict[Place, dict[str, Any]] = {}
        self._tree: tuple[RankDump, bytes] | None = None  # the last that was made
        self._series: tuple[int, bytes | None] | None = None
        self.generation = 0  # goes up when there is something new
        self.refresh()

    def refresh(self) -> int:
        """Look for new steps, at most once a second, and return the generation."""
        with self._lock:
            if time.monotonic() - self._looked < _FRESH_SECONDS and self._looked:
                return self.generation
            before = {place: facts for place, facts in self._facts.items() if facts["complete"]}
            places, found = {}, {}
            for side, dump in self.subject.sides():
                for rank in open_dump(dump.path).all_ranks():
                    place = (side, rank.step, rank.rank)
                    places[place] = rank
                    found[place] = before.get(place) or self._early(rank)
            for place in found:
                if found[place] is not before.get(place) and found[place] != self._facts.get(place):
                    self.opened.forget(places[place].directory)
            self.generation += found != self._facts
            self._places, self._facts = places, found
            self._looked = time.monotonic()
            return self.generation

    def _early(self, rank: RankDump) -> dict[str, Any]:
        try:
            facts = early_facts(rank)
            if not facts["complete"] and facts["shown"]:  # interrupted: only its whole index says how much is in it
                with self.opened.use(rank, links=True) as read:
                    facts |= rank_outline(read)
            return facts
        except AtenDumpError as error:
            return unreadable(rank, str(error))

    def read_ahead(self) -> None:
        """Read the index that is looked at first, then its relations."""
        first = next((place for place, facts in self._facts.items() if facts["shown"]), None)
        if first is None:
            return
        try:
            with self.opened.use(self._places[first], links=False) as rank:
                assert self.tree(rank)
            with self.opened.use(self._places[first], links=True) as rank:
                assert rank.links.producers is not None
        except AtenDumpError:
            return  # said when it is asked for

    def outline(self) -> bytes:
        """Return the section that says what there is."""
        outlines: dict[str, list[dict[str, Any]]] = {"target": [], "baseline": []}
        with self._lock:
            for (side, _, _), facts in self._facts.items():
                outlines[side].append(facts)
        return outline_section(self.subject, outlines, generation=self.generation)

    def section(self, name: str) -> bytes | None:
        """Return a section by name; None where there is none.

        Raises:
            AtenDumpError: the dump is damaged there.
        """
        if name == "outline":
            return self.outline()
        if name == "steps":
            return self._steps()
        match = _NAME.fullmatch(name)
        make = None if match is None else _MAKERS.get(match[4])
        if match is None or make is None or (match[5] is None) == (match[4] in _CHUNKED):
            return None
        if match[4] == "judged" and self.subject.comparison is None:
            return None
        place = self.place(match[1], int(match[2]), int(match[3]))
        if place is None:
            return None
        with self.opened.use(place, links=match[4] in _NEED_LINKS) as rank:
            return make(self, rank, int(match[5] or 0), match[1])

    def place(self, side: str, step: int, rank: int) -> RankDump | None:
        """Return a step-rank that may be read; None where there is none."""
        with self._lock:
            return next((found for place, found in self._places.items() if place == (side, step, rank)), None)

    def tree(self, rank: RankDump) -> bytes:
        """Return the section of all calls, which every view begins with."""
        known = self._tree
        if known is None or known[0] is not rank:
            known = self._tree = rank, tree_section(rank)
        return known[1]

    def _steps(self) -> bytes | None:
        """Return the numbers over all steps that are whole, which takes a look at each."""
        with self._lock:
            generation = self.generation
            if self._series is not None and self._series[0] == generation:
                return self._series[1]
            shown = [place for place, facts in self._facts.items() if facts["shown"] and place[0] == "target"]
            places = [self._places[place] for place in shown]
        series = StepSeries(sorted({one.step for one in places}), sorted({one.rank for one in places}))
        for one in places:
            with self.opened.use(one, links=True) as rank:
                series.add(rank)
        self._series = generation, series.section()
        return self._series[1]


def _json(found: dict[str, Any]) -> bytes:
    section = Section()
    for name, value in found.items():
        section.add_json(name, value)
    return section.pack()


def _chunk(make: Callable[[RankDump, Any, int], bytes], rank: RankDump, chunk: int, n: int) -> bytes | None:
    return make(rank, value_ids(rank), chunk) if chunk < chunk_count(n) else None


def _histogram(rank: RankDump, index: int) -> bytes | None:
    return histogram_section(rank, index) if index < len(rank.values) else None


def _judged(served: ServedDump, rank: RankDump, side: str) -> bytes | None:
    found = list(judged_sections(served.subject, "target" if side == "target" else "baseline", rank))
    return found[0][1] if found else None


_CHUNKED: Final = ("calls", "values", "uses", "histograms")
_NEED_LINKS: Final = ("uses", "saved", "facts", "nonfinite")
_MAKERS: Final[dict[str, Callable[[ServedDump, RankDump, int, str], bytes | None]]] = {
    "tree": lambda served, rank, at, side: served.tree(rank),
    "calls": lambda served, rank, at, side: _chunk(arguments_section, rank, at, len(rank.calls)),
    "values": lambda served, rank, at, side: _chunk(values_section, rank, at, len(rank.values)),
    "uses": lambda served, rank, at, side: _chunk(uses_section, rank, at, len(rank.values)),
    "saved": lambda served, rank, at, side: saved_section(rank),
    "histograms": lambda served, rank, at, side: _histogram(rank, at),
    "judged": lambda served, rank, at, side: _judged(served, rank, side),
    "facts": lambda served, rank, at, side: _json({**rank_outline(rank), "early": False}),
    "nonfinite": lambda served, rank, at, side: _json(nonfinite_answer(rank)),
}


class _Held(NamedTuple):
    rank: RankDump
    tables_lock: Lock
    links_lock: Lock


class OpenedRanks:
    """Step-ranks by folder."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        self._most_calls = most_calls
        self._lock = Lock()
        self._held: dict[Path, _Held] = {}  # the one looked at last is the last

    @contextmanager
    def use(self, place: RankDump, *, links: bool) -> Iterator[RankDump]:
        """Yield a step-rank whose index has been read.

        Args:
            place: which one.
            links: its relations between calls and values are needed; nobody else uses them meanwhile.
        """
        with self._lock:
            held = self._held.pop(place.directory, None) or _Held(place.anew(), Lock(), Lock())
            self._held[place.directory] = held
        with held.tables_lock:
            _read_index(held.rank)
        with held.links_lock if links else held.tables_lock:
            yield held.rank
        self._drop_some()

    def forget(self, directory: Path) -> None:
        """Let go of a step-rank that has changed on disk."""
        with self._lock:
            self._held.pop(directory, None)

    def _drop_some(self) -> None:
        """Drop those looked at longest ago, but none that is in use."""
        with self._lock:
            calls = 0
            for directory, held in reversed(list(self._held.items())):
                calls += len(held.rank.tables.calls) if "tables" in vars(held.rank) else 0
                if calls > self._most_calls and directory != next(reversed(self._held)):
                    self._drop(directory, held)

    def _drop(self, directory: Path, held: _Held) -> None:
        with ExitStack() as taken:
            for lock in (held.tables_lock, held.links_lock):
                if not lock.acquire(blocking=False):
                    return
                taken.callback(lock.release)
            del self._held[directory]


def _read_index(rank: RankDump) -> None:
    """Read the index, and make what its relations will be kept in."""
    assert rank.tables is not None
    assert rank.links is not None


def early_facts(rank: RankDump) -> dict[str, Any]:
    """Return the facts of a step-rank; of one that is being written there are none yet, and it is not shown.

    Raises:
        StoreError: its files cannot be read.
    """
    summary = rank.summary()
    commit, header = summary.commit, summary.header
    config = {} if header is None else header.config
    known = {} if commit is None else {"calls": commit.calls, "values": commit.values, "seconds": dict(commit.seconds)}
    return {
        **_NOTHING_KNOWN,
        "step": rank.step,
        "rank": rank.rank,
        "complete": commit is not None,
        "shown": commit is not None or not _grows(rank),
        "statistics": list(config.get("statistics") or ()),
        "config": {name: config.get(name) for name in _CONFIG},
        "index_bytes": summary.index_bytes,
        "shard_bytes": summary.shard_bytes,
        **known,
    }


def unreadable(rank: RankDump, why: str) -> dict[str, Any]:
    """Return the facts of a step-rank that cannot be read."""
    return {**_NOTHING_KNOWN, "step": rank.step, "rank": rank.rank, "complete": False, "shown": False, "missing": [why]}


# "early": there is more to say when the index has been read.
_NOTHING_KNOWN: Final[dict[str, Any]] = {
    "early": True, "calls": 0, "values": 0, "statistics": [], "index_bytes": 0, "shard_bytes": 0, "seconds": {},
    "config": {}, "missing": [], "notes": [], "loss_scales": [], "saved_bytes": None,
}  # fmt: skip


def _grows(rank: RankDump) -> bool:
    try:
        changed = (rank.directory / INDEX_FILE).lstat().st_mtime
    except OSError:
        return False
    return time.time() - changed < _STILL_SECONDS
