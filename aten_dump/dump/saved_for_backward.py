"""What forward calls keep alive for backward, with each storage counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from .handles import Call, Value

NOT_RECORDED = "(not recorded)"  # where the module of a call would be that was not selected


@dataclass(frozen=True, slots=True)
class SavedValues:
    """The values that the autograd node of one forward call keeps alive; `nbytes` counts a storage once."""

    call: Call | None  # None: the call was not selected, its node was seen all the same
    node: str
    values: tuple[Value, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Offload:
    """What it would do to keep what the calls in a module save in host memory or on disk, as `save_on_cpu` does."""

    module: str
    freed_bytes: int  # of the device, from forward to backward; parameters, buffers and inputs stay there anyway
    moved_bytes: int  # one way; each saved tensor is moved for itself, and comes back
    wasted_bytes: (
        int  # those of `moved_bytes` that free nothing: of parameters, of inputs, and of what was moved before
    )


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor that was saved for backward, as a saved-tensor hook saw it."""

    value: Value | None  # None: a Python number
    call: Call | None  # the innermost call that was open; None outside of all
    at_ns: int  # when, since the step began
    fetched: tuple[tuple[Call | None, int], ...]  # by which autograd nodes, and when


class SavedForBackward(Sequence[SavedValues]):
    """All saved values of a step and rank, in the order in which they were saved."""

    def __init__(self, saved: Sequence[SavedValues]) -> None:
        self._saved = saved

    @property
    def nbytes(self) -> int:
        """Bytes of all saved storages, each counted once however many calls and views keep it."""
        return distinct_nbytes(self._values())

    @property
    def outside_nbytes(self) -> int:
        """Those of `nbytes` in storages that no recorded call made: parameters, buffers and inputs of the step."""
        return distinct_nbytes(value for value in self._values() if value.from_outside)

    def _values(self) -> Iterator[Value]:
        return (value for saved in self._saved for value in saved.values)

    def by_call(self) -> dict[Call | None, int]:
        """Return the bytes that each call keeps; a storage that two calls keep counts for both.

        None stands for the calls that were not selected.
        """
        found: dict[Call | None, list[Value]] = {}
        for saved in self._saved:
            found.setdefault(saved.call, []).extend(saved.values)
        return {call: distinct_nbytes(values) for call, values in found.items()}

    def by_module(self, depth: int | None = None) -> dict[str, int]:
        """Return the bytes that the calls in each module keep; a storage counts once per module.

        Args:
            depth: cut module paths to so many names, so that inner modules count for the outer one.
        """
        return {fqn: distinct_nbytes(values) for fqn, values in self._values_by_module(depth).items()}

    def _values_by_module(self, depth: int | None) -> dict[str, list[Value]]:
        found: dict[str, list[Value]] = {}
        for saved in self._saved:
            module = saved.call.module if saved.call is not None else NOT_RECORDED
            fqn = ".".join(module.split(".")[:depth])
            found.setdefault(fqn, []).extend(saved.values)
        return found

    def offload(self, depth: int | None = None) -> list[Offload]:
        """Return for each module what offloading would free and move, the one that frees most first.

        Args:
            depth: as of `by_module`.
        """
        found = []
        for module, values in self._values_by_module(depth).items():
            freed = distinct_nbytes(value for value in values if not value.from_outside)
            moved = sum(value.nbytes for value in values)
            found.append(Offload(module, freed, moved, max(0, moved - freed)))
        return sorted(found, key=lambda one: (-one.freed_bytes, -one.moved_bytes))

    @overload
    def __getitem__(self, at: int) -> SavedValues: ...

    @overload
    def __getitem__(self, at: slice) -> SavedForBackward: ...

    def __getitem__(self, at: int | slice) -> SavedValues | SavedForBackward:
        return SavedForBackward(self._saved[at]) if isinstance(at, slice) else self._saved[at]

    def __len__(self) -> int:
        return len(self._saved)

    def __repr__(self) -> str:
        return f"<{len(self)} saved entries, {self.nbytes} bytes>"


def distinct_nbytes(values: Iterable[Value]) -> int:
    """Return the bytes of the storages of some values, each storage counted once."""
    sizes: dict[int, int] = {}
    for value in values:
        for part in [value] if value.storage else value.parts.values():
            sizes[part.storage] = max(sizes.get(part.storage, 0), part.storage_nbytes)
    return sum(sizes.values())
