"""The section ``steps``: statistics over all recorded steps of gradients, the loss, and what modules return.

Theory of operation
    Every step-rank is looked at once, as the report goes through them, shown call by call or not. A series is a value
    under one name in all of them: a parameter's gradient, or a slot of a call. Other values are followed by the page
    itself, over the steps that it shows call by call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ....dump import RankDump, Value
from .columns import Section

STATISTICS: Final = ("l2norm", "mean", "std", "min", "max", "nan", "posinf", "neginf")
_MOST_NUMBERS: Final = 400_000  # of one statistic
_LOSS: Final = ("Tensor.backward.0.forward", "input.0")


class StepSeries:
    """Collects the numbers of step-ranks."""

    def __init__(self, steps: list[int], ranks: list[int]) -> None:
        self._steps, self._ranks = steps, ranks
        self._groups: dict[str, str] = {}  # name of a series -> its group
        self._numbers: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._most = _MOST_NUMBERS // max(1, len(steps) * len(ranks))

    def add(self, rank: RankDump) -> None:
        """Take in a step and rank; only numbers are kept of it."""
        for group, name, value in _named_values(rank):
            if name not in self._groups and len(self._groups) >= self._most:
                continue
            stats = value.stats
            if stats is None:
                continue
            self._groups.setdefault(name, group)
            self._numbers[name, rank.rank, rank.step] = {key: stats.get(key) for key in STATISTICS if key in stats}

    def section(self) -> bytes | None:
        """Return the section; None where no statistics were recorded."""
        if not self._groups:
            return None
        section = Section()
        section.add_json("steps", self._steps)
        section.add_json("ranks", self._ranks)
        section.add_json("series", [[name, group] for name, group in self._groups.items()])
        cells = [
            self._numbers.get((name, rank, step), {})
            for name in self._groups
            for rank in self._ranks
            for step in self._steps
        ]
        known = [key for key in STATISTICS if any(key in cell for cell in cells)]
        section.add_json("statistics", known)
        for key in known:
            section.add_decimals(key, [cell.get(key) for cell in cells])
        return section.pack()


def _named_values(rank: RankDump) -> Iterator[tuple[str, str, Value]]:
    """Yield group, name and value of what is followed over steps."""
    call, slot = _LOSS
    if call in rank:
        yield from (("loss", "loss", value) for name, value in rank[call].input_values() if name == slot)
    yield from (("gradients", name, value) for name, value in rank.gradients.items())
    for phase, group in (("forward", "module results"), ("backward", "module gradients")):
        for module in rank.calls.filter(kind="module", phase=phase):
            yield from ((group, f"{module.name}.{name}", value) for name, value in module.output_values()[:1])
