"""The statistics of results over all steps: a row for each step, and a table of how each result moved.

Theory of operation
    One index is held at a time, so that memory does not grow with the number of steps. Rows are made of the records
    themselves, without a handle for each value: ten thousand steps have millions of them. What is not a number is
    made once for all steps that say the same (`dump.index.pattern`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from ..dump import RankDump
from ..dump.call_filter import Wanted
from ..dump.dataframes.call_columns import ColumnType, facts
from ..dump.known_tables import once_for_alike
from ..dump.shown.short_texts import format_number
from ..store import records
from ..store.argument_trees import output_slots, written_slots
from .table import Table, names, numbers, words

_PLACE: Final = facts("step", "rank", "call", "call_id", "op", "phase", "module", "slot")
_SHOWN: Final = ("l2norm", "mean", "max")  # whose way is shown: the first of them that was recorded
_BAD: Final = ("nan", "posinf", "neginf")
_NUMBERS: Final = frozenset({int, float})

Row = tuple[Any, ...]


def over_steps_columns(ranks: Sequence[RankDump]) -> dict[str, ColumnType]:
    """Return the columns of `rows_over_steps`: the statistics are those of the first step, as they hold for a run."""
    statistics = ranks[0].config.get("statistics", ()) if ranks else ()
    return {**_PLACE, **dict.fromkeys(statistics, "float")}


def rows_over_steps(ranks: Iterable[RankDump], wanted: Wanted | None, statistics: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each result with statistics: of a call's outputs, and of what it wrote in place.

    Args:
        ranks: steps and ranks, in order; nothing of one is held when the next is taken.
        wanted: which calls; None is all.
        statistics: their names, in the order of the columns.
    """
    places = once_for_alike(lambda rank: list(_places(rank, wanted)))
    for rank in ranks:
        cells = _cells(rank, statistics)
        at = rank.step, rank.rank
        for place, position in places(rank):
            yield (*at, *place, *cells[position])


_Place = tuple[Row, int]  # call, call_id, op, phase, module, slot of a result; the position of its statistics


def _places(rank: RankDump, wanted: Wanted | None) -> Iterator[_Place]:
    """Yield the results with statistics; several calls return the same value."""
    tables = rank.tables
    calls = tables.calls if wanted is None else (call.record for call in rank.calls.matching(wanted))
    ops = {op.id: op.op for op in tables.ops.records()}
    known = tables.statistics
    for call in calls:
        place: Row = ()
        for slot, value in chain(output_slots(call.outputs), written_slots(call.written) if call.written else ()):
            position = known.position(value)
            if position < 0:
                position = known.position(tables.same_as(value, records.SAME_STATISTICS, known))
            if position >= 0:
                place = place or (
                    tables.call_name(call), call.id, ops[call.op], records.PHASES[call.phase], tables.text(call.module)
                )  # fmt: skip
                yield (*place, slot), position


def _cells(rank: RankDump, statistics: Sequence[str]) -> list[Row]:
    """Return the statistics that were recorded as numbers, in the order of the file."""
    recorded = list(rank.config.get("statistics", ()))
    order = [recorded.index(name) if name in recorded else None for name in statistics]
    is_plain = recorded == list(statistics)
    return [
        tuple(map(float, numbers))
        if is_plain and len(numbers) == len(order) and _NUMBERS.issuperset(map(type, numbers))
        else tuple([None if at is None or at >= len(numbers) else _real(numbers[at]) for at in order])
        for numbers in rank.tables.statistics.in_order()
    ]


def _real(number: Any) -> float | None:
    """Return a statistic as a number; None where it is not defined, or complex."""
    return None if number is None or isinstance(number, (list, tuple)) else float(number)


@dataclass(slots=True)
class _Way:
    """How one number of a result went over the steps."""

    steps: int = 0
    first: float | None = None
    last: float | None = None
    least: float = math.inf
    greatest: float = -math.inf
    bad_from: int | None = None  # the first step with NaN or Inf

    def add(self, step: int, number: float | None, *, bad: bool) -> None:
        self.steps += 1
        if bad and self.bad_from is None:
            self.bad_from = step
        if number is None:
            return
        self.first = number if self.first is None else self.first
        self.last = number
        if math.isfinite(number):
            self.least, self.greatest = min(self.least, number), max(self.greatest, number)


def over_steps_table(rows: Iterable[Row], columns: Sequence[str], limit: int | None) -> tuple[Table, int]:
    """Return a row for each result of a rank: how a statistic went over the steps, and how many are left out.

    Args:
        rows: of `rows_over_steps`.
        columns: their names.
        limit: most rows; None is all.
    """
    shown = next((name for name in (*_SHOWN, *columns[len(_PLACE) :]) if name in columns[len(_PLACE) :]), "")
    at = columns.index(shown) if shown else None
    bad = [columns.index(name) for name in _BAD if name in columns]
    ways: dict[tuple[int, str, str], _Way] = {}
    for row in rows:
        key = row[1], row[2], row[7]
        way = ways.get(key) or ways.setdefault(key, _Way())
        way.add(row[0], None if at is None else row[at], bad=any(map(row.__getitem__, bad)))
    table = Table(
        numbers("rank", spare=3), names("call"), words("slot"), numbers("steps"),
        *(numbers(f"{word} {shown}".strip()) for word in ("first", "last", "least", "greatest")),
        numbers("NaN or Inf from step"),
    )  # fmt: skip
    for (rank, call, slot), way in islice(ways.items(), limit):
        ends = (way.least, way.greatest) if way.least <= way.greatest else (None, None)
        cells = (format_number(number) for number in (way.first, way.last, *ends))
        table.add_row(str(rank), call, slot, str(way.steps), *cells, "" if way.bad_from is None else str(way.bad_from))
    return table, max(0, len(ways) - (len(ways) if limit is None else limit))
