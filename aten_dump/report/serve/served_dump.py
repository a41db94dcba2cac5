"""What is served: the sections of a report by name, made when they are asked for, of a dump that may still grow.

Theory of operation
    The outline comes from the two ends of each index, so that a page shows itself before any index is read. All else
    is a section with a name, made by the modules that make the file. Names are taken apart by one pattern: what does
    not match it, or is not in the dump, is not there; no text of a request ever becomes a path.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from ...dump import RankDump, open_dump
from ...errors import AtenDumpError
from ..html.payload.call_arguments import arguments_section
from ..html.payload.call_tree import tree_section
from ..html.payload.chunks import chunk_count
from ..html.payload.columns import Section
from ..html.payload.dump_answer import nonfinite_answer, rank_outline
from ..html.payload.histograms import histogram_section
from ..html.payload.saved_memory import saved_section
from ..html.payload.sections import Side, Subject, judged_sections, outline_section, value_ids
from ..html.payload.step_series import StepSeries
from ..html.payload.value_columns import values_section
from ..html.payload.value_uses import uses_section
from .opened_ranks import OpenedRanks
from .step_rank_facts import early_facts, unreadable

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
            if not facts["complete"] and facts["shown"]:  # interrupted: only its whole index tells how much is in it
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
            return  # told when it is asked for

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
