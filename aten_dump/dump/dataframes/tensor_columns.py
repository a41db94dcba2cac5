"""Tensors as rows, one per (call, slot, value), with their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ..handles import Call, Recording, Value
from .call_columns import ColumnType, facts

_FIXED: Final = facts(
    "step", "rank", "call", "call_id", "op", "kind", "phase", "module", "slot", "value_id", "storage_id", "version",
    "dtype", "shape", "stride", "device", "undefined", "nbytes",
)  # fmt: skip


def value_column_types(ranks: Iterable[Recording]) -> dict[str, ColumnType]:
    """Return the columns of the rows of some steps and ranks: the statistics are those that were recorded."""
    statistics = dict.fromkeys(name for rank in ranks for name in rank.config.get("statistics", ()))
    return {**_FIXED, **dict.fromkeys(statistics, "float"), "hash": "text"}


def value_rows(calls: Iterable[Call]) -> Iterator[dict[str, Any]]:
    """Yield a row for each input, output and written argument of each call."""
    for call in calls:
        rank = call.rank
        facts = (rank.step, rank.rank, call.name, call.id, call.op, call.kind, call.phase, call.module)
        start = dict(zip(_FIXED, facts, strict=False))
        for slot, value in call.all_values():
            yield {**start, "slot": slot, **_value_cells(value)}


_VALUE_COLUMNS: Final = list(_FIXED)[list(_FIXED).index("value_id") :]


def _value_cells(value: Value) -> dict[str, Any]:
    facts = (
        value.id,
        value.storage,
        value.version,
        value.dtype_name,
        list(value.shape),
        list(value.stride),
        value.device_name,
        value.undefined,
        value.nbytes,
    )
    return {**dict(zip(_VALUE_COLUMNS, facts, strict=True)), **(value.stats or {}), "hash": value.hash}
