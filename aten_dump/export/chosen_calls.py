"""What is exported: calls of some steps and ranks, an index in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..dump import Call, RankDump, Value
from ..dump.call_filter import Wanted
from ..errors import MissingDataError

Progress = Callable[[int, int], None]  # calls done, calls in all


@dataclass
class ChosenCalls:
    """Calls of some steps and ranks, and what happens to them on the way out.

    Args:
        ranks: the steps and ranks, in order.
        kinds: kinds of calls.
        filters: as of ``Calls.filter``.
        sources: folder whose files may be read for lines of code; None reads none.
        progress: is called with how many calls are done.
    """

    ranks: Sequence[RankDump]
    kinds: Sequence[str]
    filters: Mapping[str, str | None] = field(default_factory=dict)
    sources: Path | None = None
    progress: Progress | None = None
    left_out: dict[str, int] = field(default_factory=dict)  # what was not exported, and how often
    yielded: int = 0  # calls, so far
    _lost: frozenset[int] = frozenset()  # blobs of this step and rank whose bytes are not in their shard
    _done: int = 0
    _all: int = 0

    @property
    def several(self) -> bool:
        """True if there is more than one step and rank."""
        return len(self.ranks) > 1

    def each_rank(self) -> Iterator[RankDump]:
        """Yield the steps and ranks; what one has read is let go of before the next."""
        for rank in self.ranks:
            yield rank.anew()

    def calls(self, rank: RankDump) -> Iterator[Call]:
        """Yield the selected calls of a step and rank, in execution order."""
        self._lost = rank.source.lost_blobs(rank.tables)
        selected = rank.calls if not any(self.filters.values()) else rank.calls.matching(Wanted(**self.filters))
        self._all = max(self._all, self._done) + len(selected)
        kinds = frozenset(self.kinds)
        for call in selected:
            if call.kind in kinds:
                self.yielded += 1
                yield call
            self._done += 1
            if self.progress is not None:
                self.progress(self._done, self._all)

    def leave_out(self, what: str, count: int = 1) -> None:
        """Note that something does not go into the export."""
        self.left_out[what] = self.left_out.get(what, 0) + count

    def tensors(self, values: Sequence[tuple[str, Value]]) -> Iterator[tuple[str, Value]]:
        """Yield those of some (slot, value) whose bytes are there; note the others."""
        for slot, value in values:
            if value.undefined:
                self.leave_out("tensors that are undefined memory")
            elif value.opaque or not value.has_data:
                self.leave_out("tensors whose bytes were not recorded")
            elif any(part.data is not None and part.data.blob in self._lost for part in (value, *value.parts.values())):
                self.leave_out("tensors whose bytes are not in their shards: the dump was cut short")
            else:
                yield slot, value


def slots_of(call: Call) -> list[tuple[str, Value]]:
    """Return (slot, value) of all that a call was given, returned and wrote to."""
    return [*call.input_values(), *call.output_values(), *call.written_values()]


def require(package: str, extra: str) -> None:
    """Name the extra that a target needs, if it is not installed.

    Raises:
        MissingDataError: it is not installed.
    """
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingDataError(f"this export needs {package}: pip install 'aten-dump[{extra}]'")
