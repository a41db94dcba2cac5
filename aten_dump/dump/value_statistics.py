"""The statistics of a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import MissingDataError

Number = int | float | complex | None


class Stats(Mapping[str, Number]):
    """The statistics of a value, by name and as attributes: ``stats["min"]``, ``stats.min``.

    None stands where a statistic is not defined (the mean of no elements).
    """

    __slots__ = ("_numbers",)

    def __init__(self, numbers: dict[str, Number]) -> None:
        self._numbers = numbers

    def __getitem__(self, name: str) -> Number:
        try:
            return self._numbers[name]
        except KeyError:
            raise MissingDataError(_no_statistic(name, self._numbers)) from None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a statistic, or `default` where it was not recorded."""
        return self._numbers.get(name, default)

    def __getattr__(self, name: str) -> Number:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._numbers[name]
        except KeyError:
            raise AttributeError(_no_statistic(name, self._numbers)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return "Stats(" + ", ".join(f"{name}={number!r}" for name, number in self._numbers.items()) + ")"


def _no_statistic(name: str, recorded: Mapping[str, Number]) -> str:
    return f"statistic {name!r} was not recorded; recorded are {', '.join(recorded)}: add it to DumpConfig.statistics"
