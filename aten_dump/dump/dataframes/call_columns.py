"""Calls as rows: the columns of `rank.calls.to_pandas()` and of the Parquet table of calls."""

from __future__ import annotations

from typing import Any, Final, Literal

from ..handles import Call

ColumnType = Literal["int", "float", "text", "bool", "ints"]
CALL_COLUMNS: Final[dict[str, ColumnType]] = {
    "call_id": "int", "name": "text", "op": "text", "api": "text", "kind": "text", "phase": "text",
    "parent_id": "int", "forward_id": "int", "module": "text", "sequence_nr": "int", "thread": "int",
    "start_ns": "int", "duration_ns": "int", "error": "text", "source_file": "text", "source_line": "int",
    "source_function": "text", "training": "bool", "grad_enabled": "bool",
}  # fmt: skip


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
