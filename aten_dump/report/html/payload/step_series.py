"""The section ``steps``: statistics over all recorded steps of gradients, the loss, and what modules return.

Theory of operation
    Every step-rank is looked at once, as the report goes through them, shown call by call or not. A series is a value
    under one name in all of them: a parameter's gradient, or a slot of a call. Other values are followed by the page
    itself, over the steps that it shows call by call. Which values are followed is found once for all steps that say
    the same, and a number takes ten bytes: ten thousand steps are read in a part of a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....dump import RankDump
from ....dump.known_tables import once_for_alike
from ....store import records
from .columns import NOTHING, Section, decimal

STATISTICS: Final = ("l2norm", "mean", "std", "min", "max", "nan", "posinf", "neginf")
_MOST_NUMBERS: Final = 400_000  # of one statistic
_LOSS: Final = ("Tensor.backward.0.forward", "input.0")


class StepSeries:
    """Collects the numbers of step-ranks."""

    def __init__(self, steps: list[int], ranks: list[int]) -> None:
        self._steps = {step: at for at, step in enumerate(steps)}
        self._ranks = {rank: at for at, rank in enumerate(ranks)}
        self._series: dict[str, _Series] = {}
        self._recorded: set[str] = set()
        self._most = _MOST_NUMBERS // max(1, len(steps) * len(ranks))

    def add(self, rank: RankDump) -> None:
        """Take in a step and rank; only numbers are kept of it."""
        names = [name for name in rank.config.get("statistics", ()) if name in STATISTICS]
        order = [(STATISTICS.index(name), list(rank.config["statistics"]).index(name)) for name in names]
        cell = self._ranks[rank.rank] * len(self._steps) + self._steps[rank.step]
        numbers = rank.tables.statistics.in_order()
        for name, group, position in _followed(rank):
            if position < 0 or (name not in self._series and len(self._series) >= self._most):
                continue
            series = self._series.get(name)
            if series is None:
                series = self._series[name] = _Series.empty(group, len(self._steps) * len(self._ranks))
            for row, column in order[: len(numbers[position])]:
                series.digits[row, cell], series.exponents[row, cell] = _decimal(numbers[position][column])
            self._recorded.update(names)

    def section(self) -> bytes | None:
        """Return the section; None where no statistics were recorded."""
        if not self._series:
            return None
        section = Section()
        section.add_json("steps", list(self._steps))
        section.add_json("ranks", list(self._ranks))
        section.add_json("series", [[name, series.group] for name, series in self._series.items()])
        known = [name for name in STATISTICS if name in self._recorded]
        section.add_json("statistics", known)
        for name in known:
            row = STATISTICS.index(name)
            digits = np.concatenate([series.digits[row] for series in self._series.values()])
            section.add_pairs(name, digits, np.concatenate([one.exponents[row] for one in self._series.values()]))
        return section.pack()


class _Series(NamedTuple):
    """The numbers of one name: a row for each statistic, in it a decimal for each rank and step."""

    group: str
    digits: NDArray[np.int64]
    exponents: NDArray[np.int16]

    @classmethod
    def empty(cls, group: str, cells: int) -> _Series:
        shape = len(STATISTICS), cells
        return cls(group, np.zeros(shape, np.int64), np.full(shape, NOTHING, np.int16))


def _decimal(number: Any) -> tuple[int, int]:
    return decimal(None if isinstance(number, (list, tuple)) else number)  # of complex numbers there is no line


def _followed(rank: RankDump) -> Iterator[tuple[str, str, int]]:
    """Yield name and group of what is followed over steps, and the position of its statistics or -1."""
    call, others = _places(rank)
    if call is not None:  # what a call is given is no part of what steps repeat
        for name, value in rank.call_at(call).input_values():
            if name == _LOSS[1]:
                yield "loss", "loss", _position(rank, value.id)
    yield from others


@once_for_alike
def _places(rank: RankDump) -> tuple[int | None, list[tuple[str, str, int]]]:
    """Return the position of the call that is given the loss, and what else is followed."""
    found = [(name, "gradients", _position(rank, value.id)) for name, value in rank.gradients.items()]
    for phase, group in (("forward", "module results"), ("backward", "module gradients")):
        for module in rank.calls.filter(kind="module", phase=phase):
            for slot, value in module.output_values()[:1]:
                found.append((f"{module.name}.{slot}", group, _position(rank, value.id)))
    return rank.links.names.get(_LOSS[0]), found


def _position(rank: RankDump, value: int) -> int:
    known = rank.tables.statistics
    return known.position(rank.tables.same_as(value, records.SAME_STATISTICS, known))
