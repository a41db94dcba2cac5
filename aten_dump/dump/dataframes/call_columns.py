"""What columns of tables are named, and calls as rows: `rank.calls.to_pandas()` and the Parquet table of calls.

A fact has one name in all tables, so that they can be joined: each takes its columns from `FACTS`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from ..handles import Call

ColumnType = Literal["int", "float", "text", "bool", "ints", "texts"]
Types = dict[str, ColumnType]
# The facts of calls and values. Statistics have their own names, and a comparison those of its measurements.
FACTS: Final[Types] = {
    "step": "int", "rank": "int", "call_id": "int", "call": "text", "op": "text", "api": "text", "kind": "text",
    "phase": "text", "parent_id": "int", "forward_id": "int", "module": "text", "sequence_nr": "int", "thread": "int",
    "start_ns": "int", "duration_ns": "int", "error": "text", "source": "text", "source_file": "text",
    "source_line": "int", "source_function": "text", "training": "bool", "grad_enabled": "bool", "slot": "text",
    "value_id": "int", "storage_id": "int", "version": "int", "dtype": "text", "shape": "ints", "stride": "ints",
    "device": "text", "nbytes": "int", "undefined": "bool", "requires_grad": "bool", "has_data": "bool",
    "hash": "text",
}  # fmt: skip


def facts(*names: str) -> Types:
    """Return columns by their names, with their types."""
    return {name: FACTS[name] for name in names}


CALL_COLUMNS: Final = facts(
    "call_id", "call", "op", "api", "kind", "phase", "parent_id", "forward_id", "module", "sequence_nr", "thread",
    "start_ns", "duration_ns", "error", "source_file", "source_line", "source_function", "training", "grad_enabled",
)  # fmt: skip


def call_row(call: Call) -> tuple[Any, ...]:
    """Return the cells of `CALL_COLUMNS`; None is what there is not."""
    source, forward = call.source, call.forward
    return (
        call.id, call.name, call.op, call.api, call.kind, call.phase, call.parent_id or None,
        None if forward is None else forward.id, call.module, _signed(call.sequence_nr), call.thread,
        call.start_ns or None, call.duration_ns or None, call.error,
        *((source.file, source.line, source.function) if source else (None, None, None)),
        call.training, call.grad_enabled,
    )  # fmt: skip


def _signed(number: int | None) -> int | None:
    """Return a sequence number, which autograd counts in 64 bits without a sign, as an int64 holds it."""
    return number - (1 << 64) if number is not None and number >= 1 << 63 else number
