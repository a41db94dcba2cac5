"""What a step leaves in memory that was there before it: parameters, buffers, the optimizer's state.

Theory of operation
    An op whose result nothing reads (the last one of an optimizer, say) is compared by its pair only. If it has none,
    as the two programs are written otherwise, what it wrote is compared here: for memory that both sides had from
    outside, the last value that calls without a counterpart gave it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...dump import RankDump, Value

Place = tuple[object, ...]


def last_values(rank: RankDump) -> dict[Place, Value]:
    """Return the last value of each place: a storage seen with a geometry."""
    newest: dict[Place, tuple[int, int]] = {}
    for record in rank.tables.values.records():
        if record.storage:
            place = record.storage, record.offset, record.dtype, tuple(record.shape), tuple(record.stride)
            newest[place] = max(newest.get(place, (-1, -1)), (record.version, record.id))
    return {place: rank.value_by_id(id) for place, (version, id) in newest.items() if version}


def left_behind(ranks: tuple[RankDump, RankDump], from_outside: Mapping[int, Value]) -> Iterator[tuple[Value, Value]]:
    """Yield the last values of memory that came from outside, where a side wrote to it.

    Args:
        ranks: the target and the baseline.
        from_outside: the baseline's counterpart of each of the target's values that no call made, by value id.
    """
    last = [last_values(rank) for rank in ranks]
    seen = set()
    for id, other in from_outside.items():
        values = ranks[0].value_by_id(id), other
        ends = [side.get(_place(value), value) for side, value in zip(last, values, strict=True)]
        if ends != list(values) and (ends[0].id, ends[1].id) not in seen:
            seen.add((ends[0].id, ends[1].id))
            yield ends[0], ends[1]


def _place(value: Value) -> Place:
    record = value.record
    return record.storage, record.offset, record.dtype, tuple(record.shape), tuple(record.stride)
