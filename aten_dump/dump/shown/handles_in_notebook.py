"""A call and a value as a notebook shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..call_facts import CallFacts
from ..value_facts import ValueFacts
from .notebook_html import facts, line, shown, table
from .short_texts import duration_text, format_bytes, format_number, tensor_type

_STATISTICS: Final = ("min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
Slots = Sequence[tuple[str, ValueFacts]]


def call_html(call: CallFacts, values: Slots, forward: CallFacts | None) -> str:
    """Return a call: what and where it is, and its tensors.

    Args:
        call: the call.
        values: slot and value of all its tensors.
        forward: the forward call that it belongs to.
    """
    named = {
        "op": call.op,
        "kind": f"{call.kind}, {call.phase}",
        "module": call.module,
        "source": call.source,
        "belongs to": None if forward is None else forward.name,
        "time": duration_text(call) or None if call.finished else "unknown: the call was cut short",
        "written in place": ", ".join(call.mutated),
        "error": call.error,
    }
    return shown(call.name, facts(named), _values_table(values))


def _values_table(values: Slots) -> str:
    names = [name for name in _STATISTICS if any(_is_told(value, name) for _, value in values)]
    rows = [[slot, tensor_type(value), *(_statistic(value, name) for name in names)] for slot, value in values]
    return table(["slot", "tensor", *names], rows, texts=2)


def _is_told(value: ValueFacts, name: str) -> bool:
    """Return True if a statistic has a column: counts of what is not finite only where there is some."""
    number = None if value.stats is None else value.stats.get(name)
    return number is not None and (name not in ("nan", "posinf", "neginf") or number != 0)


def _statistic(value: ValueFacts, name: str) -> str:
    return "" if value.stats is None else format_number(value.stats.get(name))


def value_html(value: ValueFacts, nbytes: int, made_by: str, read_by: Sequence[str]) -> str:
    """Return a value: its geometry, statistics, who made it and who reads it.

    Args:
        value: the value.
        nbytes: of its elements.
        made_by: name and slot of its producer, ``""`` where it came from outside the step.
        read_by: names and slots of its consumers.
    """
    named: dict[str, Any] = {
        "stride": list(value.stride),
        "device": value.device_name,
        "bytes": format_bytes(nbytes),
        "storage": f"{value.storage}, version {value.version}",
        "made by": made_by or "from outside the step",
        "read by": _listed(read_by),
        "hash": value.hash,
    }
    stats = dict(value.stats or {})
    numbers = table(list(stats), [[format_number(number) for number in stats.values()]], texts=0) if stats else ""
    return shown(
        f"{tensor_type(value)}, value {value.id}", facts(named), numbers or line("no statistics were recorded")
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
