"""Sections ``values/K``: of the values of the K-th chunk geometry, storage and statistics."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ....dump import RankDump, Value
from ....store import records
from ...units import tensor_type
from .chunks import chunk_range
from .columns import Integers, Interned, Section


class Signature(NamedTuple):
    """What values of one kind have in common."""

    text: str  # "f32[8, 128]"
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str


def values_section(rank: RankDump, value_ids: Integers, chunk: int) -> bytes:
    """Return the section of a chunk of values; `value_ids` are the ids of all, ascending."""
    section = Section()
    positions = chunk_range(chunk, len(value_ids))
    ids = value_ids[positions.start : positions.stop]
    values = [rank.value_by_id(id) for id in ids.tolist()]
    section.add_integers("id", ids, delta=True)
    signatures: Interned[Signature] = Interned()
    section.add_integers("signature", [signatures.number(signature(value)) for value in values])
    section.add_json("signatures", signatures.items)
    section.add_integers("storage", [value.storage for value in values], delta=True)
    section.add_integers("version", [value.version for value in values])
    section.add_integers("offset", [value.storage_offset for value in values])
    section.add_integers("flags", [_flags(value) for value in values])
    _add_statistics(section, rank, values)
    if rank.config.get("data") == "hash":
        section.add_json("hashes", [value.hash for value in values])
    return section.pack()


_REQUIRES_GRAD, _HAS_DATA, _UNDEFINED = 1, 2, 4


def _flags(value: Value) -> int:
    return _REQUIRES_GRAD * value.requires_grad + _HAS_DATA * (value.data is not None) + _UNDEFINED * value.undefined


def signature(value: Value) -> Signature:
    """Return what a value has in common with others."""
    return Signature(
        tensor_type(value), value.nbytes, value.dtype_name, tuple(value.shape), value.stride, value.device_name
    )


def _add_statistics(section: Section, rank: RankDump, values: list[Value]) -> None:
    """Add the statistics, a column for each; values that have those of another name its row."""
    tables = rank.tables
    names = [name for name in rank.config.get("statistics", ()) if isinstance(name, str)]
    rows: Interned[int] = Interned(-1)  # row 0 is that of values without statistics
    holders = [tables.same_as(value.id, records.SAME_STATISTICS, tables.statistics) for value in values]
    numbers = [rows.number(holder if holder in tables.statistics else -1) for holder in holders]
    section.add_integers("row", numbers, delta=True)
    section.add_json("statistics", names)
    known = [list(tables.statistics[holder]) for holder in rows.items[1:]]
    columns = {name: [row[at] if at < len(row) else None for row in known] for at, name in enumerate(names)}
    section.add_json("complex", {name: _complex(column) for name, column in columns.items() if _complex(column)})
    _leave_out_positive(columns)
    for name, column in columns.items():
        section.add_decimals(f"statistics.{name}", [None if isinstance(n, (list, tuple)) else n for n in column])


def _complex(column: list[Any]) -> dict[int, Any]:
    return {row: number for row, number in enumerate(column, 1) if isinstance(number, (list, tuple))}


_SIGNS: Final = ("nan", "zero", "negative", "positive")


def _leave_out_positive(columns: dict[str, list[Any]]) -> None:
    """Put into "positive" what it has beyond what the other counts say: nothing, as a rule."""
    if not {"count", *_SIGNS} <= columns.keys():
        return
    for row, (count, *others) in enumerate(zip(*(columns[name] for name in ("count", *_SIGNS)), strict=True)):
        if not any(number is None or isinstance(number, (list, tuple)) for number in (count, *others)):
            columns["positive"][row] = sum(others) - count


def uses_section(rank: RankDump, value_ids: Integers, chunk: int) -> bytes:
    """Return the section of a chunk of values; `value_ids` are the ids of all, ascending."""
    section = Section()
    links = rank.links
    positions = chunk_range(chunk, len(value_ids))
    ids = value_ids[positions.start : positions.stop].tolist()
    section.add_integers("producer", [links.producers.get(id, -1) for id in ids], delta=True)
    consumers = [links.consumers.get(id, ()) for id in ids]
    section.add_integers("count", [len(found) for found in consumers])
    steps = (at - before for found in consumers for before, at in zip((0, *found), found, strict=False))
    section.add_integers("consumer", list(steps))
    return section.pack()
