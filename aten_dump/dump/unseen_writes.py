"""Memory that changed though no op wrote to it, in a recording that looked for that (``DumpConfig.dedup``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..store import records
from .handles import Call, Value

UNSEEN: Final = "unseen_writes"
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class UnseenWrite:
    """Memory that changed although no op wrote to it.

    Attributes:
        value: what it held then, as it was first seen.
        last: the last call that saw what it held before.
        first: the first call that saw what it holds now.
    """

    value: Value
    last: Call | None
    first: Call | None

    def __str__(self) -> str:
        dtype, shape = self.value.dtype_name, list(self.value.shape)
        last = "the beginning of the step" if self.last is None else self.last.name
        first = "the end of the step" if self.first is None else self.first.name
        return f"{dtype}{shape} between {last} and {first}"


def unseen_writes(every: Iterable[Value]) -> list[UnseenWrite]:
    """Return the memory of a step that changed without an op, in the order in which that was seen."""
    moments: dict[int, dict[int, list[Value]]] = defaultdict(dict)
    for value in every:
        if value.storage:
            moments[value.storage].setdefault(value.version, []).append(value)
    found = []
    for versions in moments.values():
        before: list[Value] = []
        for _, values in sorted(versions.items()):
            if before and not any(map(_is_written, values)):
                seen, new = _calls_of(before), _calls_of(values)
                found.append(UnseenWrite(values[0], seen[-1] if seen else None, new[0] if new else None))
            before = values
    return sorted(found, key=lambda write: write.value.id)


def _is_written(value: Value) -> bool:
    """Return True if an op wrote this memory: what makes a view reads it as it is, other calls return what ops made."""
    if value.producer is None or value.producer[0].kind != "aten":
        return False
    moment = value.storage, value.version
    return all((given.storage, given.version) != moment for _, given in value.producer[0].input_values())


def named(every: Iterable[Value], note: records.Note) -> records.Note:
    """Return a note on such writes with the calls between which each happened."""
    writes = unseen_writes(every)
    if not writes:
        return note
    more = f" and {len(writes) - _MOST_NAMED} more" if len(writes) > _MOST_NAMED else ""
    return note._replace(message=f"{note.message}: {'; '.join(map(str, writes[:_MOST_NAMED]))}{more}")


def _calls_of(values: list[Value]) -> list[Call]:
    """Return the ops that made or read some values, in execution order; other calls where no op did."""
    calls = {call.id: call for value in values for call, _ in value.consumers}
    calls |= {value.producer[0].id: value.producer[0] for value in values if value.producer is not None}
    ordered = [calls[number] for number in sorted(calls)]
    return [call for call in ordered if call.kind == "aten"] or ordered
