"""Memory that is written as a whole and read in parts: flat parameters, and the parameters that are views of them.

Theory of operation
    An optimizer may work on one long tensor. Then no call of the step shows the new value of a single parameter.
    `with_parts` adds these: each value of such memory, and of any tensor of that length (gradients, moments,
    intermediate results), gets parts at the places of the parameters. A part is the value that was seen at its place
    when its elements were last written, or a new value with its bytes in the long tensor. An op that works element by
    element then becomes one op for each part (`parts_of_call`).

    Storages within one memory, as an NPU's optimizers place them, are one storage here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import torch

from ...dump import RankDump, Value
from ...dump.index.tables import Tables
from ...geometry import reach
from ...store import records
from ...store.argument_trees import input_ids, result_ids
from ...torch_names import DTYPES

_HOLDS_ALL = (records.LAYOUTS.index("strided"), records.LAYOUTS.index("compact"))
_Length = tuple[int, int]  # of a long tensor in elements, and its dtype
_NO_ELEMENTS = records.UNDEFINED | records.CONJUGATE | records.NEGATIVE | records.OPAQUE


class _Part(NamedTuple):
    """Where a part lies in a long tensor."""

    start: int  # in elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + torch.Size(self.shape).numel()


class RankWithParts(RankDump):
    """A recording with values for the parts of its flat memory."""

    def __init__(self, rank: RankDump, found: _Finding) -> None:
        super().__init__(rank.directory, rank.step, rank.rank)
        self.source = rank.source
        self.parts = found.parts  # ids of the parts of a long tensor, by its id
        self._recorded = rank.tables
        self._found = found

    @cached_property
    def tables(self) -> Tables:
        found = self._recorded
        changed = [*self._found.values, *(part for part, _ in self._found.made), *found.data.records()]
        for part, whole in self._found.made:
            data, dtype = found.data.find(whole.id), DTYPES.get(found.text(whole.dtype))
            if data is not None and data.layout in _HOLDS_ALL and dtype is not None:
                offset = data.offset + (part.offset - whole.offset) * dtype.itemsize
                changed.append(data._replace(value=part.id, offset=offset))
        return self.source.changed_tables(self.where, changed, (records.VALUE, records.DATA))


def with_parts(rank: RankDump) -> RankDump:
    """Return a recording with values for the parts of its flat memory, or itself if it has none."""
    if rank.config.get("source"):
        return rank  # other tools do not say which tensors lie in the same memory
    found = _Finding(rank.tables)
    return RankWithParts(rank, found) if found.parts or found.is_shared else rank


def has_parts(value: Value) -> bool:
    """Return True if a value is a long tensor that has parts."""
    rank = value.rank
    return isinstance(rank, RankWithParts) and value.id in rank.parts


def parts_of(value: Value) -> list[Value]:
    """Return the parts of a long tensor, as values; of any other value, nothing."""
    rank = value.rank
    return [rank.value_by_id(part) for part in rank.parts.get(value.id, ())] if isinstance(rank, RankWithParts) else []


def long_tensors(rank: RankDump) -> list[Value]:
    """Return the values of a recording that have parts."""
    return [rank.value_by_id(number) for number in rank.parts] if isinstance(rank, RankWithParts) else []


def of_parts(values: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Return values; those that have parts are replaced by these if no other value is as long."""
    sizes = {value.numel for value in others}
    found = ((parts_of(value) if value.numel not in sizes else []) or [value] for value in values)
    return list({value.id: value for some in found for value in some}.values())


class _Finding:
    """Finds the parts of one recording."""

    def __init__(self, tables: Tables) -> None:
        self.parts: dict[int, tuple[int, ...]] = {}
        self.made: list[tuple[records.Value, records.Value]] = []  # a part, and the long tensor that has its bytes
        self.is_shared = any(storage.memory for storage in tables.storages.records())
        self.values = list(tables.values.records())
        if self.is_shared:
            self.values = [_in_memory(value, tables) for value in self.values]
        found = {storage: _layout(seen) for storage, seen in _by_storage(self.values).items()}
        layouts = {storage: layout for storage, layout in found.items() if layout is not None}
        if layouts:
            self._written = _writes(tables, {value.id: value for value in self.values})
            self._next = 1 + max(tables.values)
            self.values = [self._when_written(v) if v.storage in layouts else v for v in self.values]
            self._find(dict(layouts.values()))

    def _find(self, layouts: Mapping[_Length, tuple[_Part, ...]]) -> None:
        """Find the parts of all tensors of these lengths."""
        for seen in _by_storage(self.values).values():
            known: dict[tuple[object, int], int] = {}
            for value in seen:
                known.setdefault((value.place, value.version), value.id)
            for value in seen:
                parts = layouts.get((value.shape[0], value.dtype)) if len(value.shape) == 1 else None
                if parts is not None:
                    self.parts[value.id] = tuple(self._part(value, part, known) for part in parts)

    def _part(self, whole: records.Value, part: _Part, known: dict[tuple[object, int], int]) -> int:
        """Return the id of a part of a long tensor at its last write, and note it in `known`."""
        offset, shape, stride = whole.offset + part.start, list(part.shape), list(part.stride)
        made = self._when_written(whole._replace(id=self._next, offset=offset, shape=shape, stride=stride))
        found = known.setdefault((made.place, made.version), made.id)
        if found == made.id:
            self._next += 1
            self.made.append((made, whole))
        return found

    def _when_written(self, value: records.Value) -> records.Value:
        """Return a value as one of the version that wrote to its elements last."""
        start, end = value.offset, value.offset + reach(value.shape, value.stride)
        for version in range(value.version, 0, -1):
            ranges = self._written.get((value.storage, version))
            if ranges is None or any(a < end and start < b for a, b in ranges):
                return value._replace(version=version)
        return value._replace(version=0)


def _by_storage(values: Iterable[records.Value]) -> dict[int, list[records.Value]]:
    """Return the values with all elements of a stretch of memory, by storage."""
    found: dict[int, list[records.Value]] = {}
    for value in values:
        if value.storage and value.extra is None and not value.flags & _NO_ELEMENTS and _is_dense(value):
            found.setdefault(value.storage, []).append(value)
    return found


def _layout(seen: list[records.Value]) -> tuple[_Length, tuple[_Part, ...]] | None:
    """Return the length of a long tensor's memory, and the places of its parts; None if it is not one."""
    longest = max(seen, key=lambda value: (_numel(value), -len(value.shape), value.version))
    if len(longest.shape) != 1 or not longest.version:
        return None
    parts: list[_Part] = []
    for value in sorted(seen, key=_numel, reverse=True):
        part = _Part(value.offset - longest.offset, tuple(value.shape), tuple(value.stride))
        is_inside = part.start >= 0 and part.end <= longest.shape[0] and value.dtype == longest.dtype
        is_part = is_inside and 0 < _numel(value) < longest.shape[0]
        if is_part and all(part.end <= other.start or other.end <= part.start for other in parts):
            parts.append(part)
    is_of_tensors = len(parts) > 1 and any(part.end - part.start > 1 for part in parts)  # and not filled one by one
    return ((longest.shape[0], longest.dtype), tuple(sorted(parts))) if is_of_tensors else None


def _in_memory(value: records.Value, tables: Tables) -> records.Value:
    """Return a value as one of the storage in whose memory its own lies."""
    storage = tables.storages.find(value.storage)
    dtype = DTYPES.get(tables.text(value.dtype)) if storage is not None and storage.memory else None
    if storage is None or dtype is None or storage.offset % dtype.itemsize:
        return value
    return value._replace(storage=storage.memory, offset=value.offset + storage.offset // dtype.itemsize)


def _writes(tables: Tables, values: Mapping[int, records.Value]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the elements, first and past the last, that calls wrote at each version of a storage."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for call in tables.calls:
        given = {(values[number].storage, values[number].version) for number in input_ids(call)}
        for number in result_ids(call):
            value = values[number]
            if value.storage and (value.storage, value.version) not in given:
                ranges = found.setdefault((value.storage, value.version), [])
                ranges.append((value.offset, value.offset + reach(value.shape, value.stride)))
    return found


def _numel(value: records.Value) -> int:
    return torch.Size(value.shape).numel()


def _is_dense(value: records.Value) -> bool:
    """Return True if a value has its elements in memory one after the other, in row-major order."""
    expected = 1
    for size, step in zip(reversed(value.shape), reversed(value.stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return expected > 0
