"""What is kept of each value."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import DumpConfig
from ...store.records import SAME_HASH, SAME_STATISTICS


@dataclass(frozen=True, slots=True)
class WantedData:
    """What a configuration asks to keep of each value's data."""

    bytes: bool
    statistics: tuple[str, ...]  # their names; empty: none
    hash: str  # its algorithm; empty: none
    sample: int | None = None  # only so many elements are stored

    @classmethod
    def of(cls, config: DumpConfig) -> WantedData:
        """Return what a configuration asks for."""
        return cls(
            config.wants_tensor,
            config.statistics if config.wants_statistics else (),
            config.hash if config.wants_hash else "",
            config.sample,
        )

    @property
    def facts(self) -> bool:
        """True if statistics or a hash are computed."""
        return bool(self.statistics or self.hash)

    @property
    def same_facts(self) -> int:
        """`Same.facts` of a value that has all elements of another."""
        return (SAME_STATISTICS if self.statistics else 0) | (SAME_HASH if self.hash else 0)
