"""Positions of calls by name, without making the names.

Theory of operation
    A million names would take seconds and a hundred megabytes. So calls are sorted by what their names are rendered
    from: prefix and api, n, phase, repeat. A name is looked up under all that it may have been rendered from: there are
    two readings at most, as prefix and api may hold dots and numbers, and nothing but a known one is found. A module's
    call is also found by the name that msprobe gives it, ``Module.fc1.Linear.forward.0``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from ...store import records
from .tables import Tables

_MSPROBE_PHASES: Final = {  # it knows two
    "forward": [records.PHASES.index(phase) for phase in ("forward", "recompute", "optimizer")],
    "backward": [records.PHASES.index("backward")],
}
_PHASES: Final = {phase: code for code, phase in enumerate(records.PHASES)}


class CallNames(Mapping[str, int]):
    """Position of a call by its name; of equal names the last counts."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        calls = tables.calls
        ops, places = np.unique(calls.column("op"), return_inverse=True)
        heads = [tables.call_head(op) for op in ops.tolist()]
        self._heads = {head: number for number, head in enumerate(dict.fromkeys(heads))}
        head = np.array([self._heads[head] for head in heads], np.int64)[places]
        columns = [head, *(calls.column(name) for name in ("n", "phase", "repeat"))]
        self._order = np.lexsort(columns[::-1])
        self._columns = [column[self._order] for column in columns]

    def __getitem__(self, name: str) -> int:
        for kind, head, *numbers in _readings(name) if isinstance(name, str) else ():
            start, stop = 0, len(self._order)
            for column, wanted in zip(self._columns, (self._heads.get(head, -1), *numbers), strict=True):
                part = column[start:stop]
                start, stop = (start + int(part.searchsorted(wanted, side)) for side in ("left", "right"))
            if start < stop:
                position = int(self._order[stop - 1])
                if not kind or self._ends_in(position, kind):
                    return position
        raise KeyError(name)

    def _ends_in(self, position: int, kind: str) -> bool:
        """Return True if what a call calls has this last name, as a module has that of its class."""
        record = self._tables.ops.get(int(self._tables.calls.column("op")[position]))
        return record is not None and record.op.rpartition(".")[2] == kind

    def __iter__(self) -> Iterator[str]:
        calls = self._tables.calls
        return map(self._tables.render, *(calls.column(name).tolist() for name in ("op", "n", "phase", "repeat")))

    def __len__(self) -> int:
        return len(self._order)


def _readings(name: str) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield what a name may have been rendered from: class in msprobe's names, prefix and api, n, phase, repeat."""
    shorter, _, last = name.rpartition(".")
    for text, repeat in ((name, "0"), (shorter, last if last != "0" else "")):
        text, _, phase = text.rpartition(".")
        head, _, n = text.rpartition(".")
        if phase in _PHASES and _is_number(n) and _is_number(repeat):
            yield "", head, int(n), _PHASES[phase], int(repeat)
    head, _, phase = shorter.rpartition(".")
    head, _, kind = head.rpartition(".")
    if head.startswith("Module.") and _is_number(last):
        for code in _MSPROBE_PHASES.get(phase, ()):
            yield kind, head, int(last), code, 0


def _is_number(text: str) -> bool:
    """Return True if a text is an integer as names have it: of 64 bits, without leading zeros."""
    return text.isdecimal() and len(text) < 19 and text == str(int(text))
