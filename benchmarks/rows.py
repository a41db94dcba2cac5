"""All rows that the table can have, by name."""

from __future__ import annotations

from .limits import LIMITS
from .measure import Mode
from .modes import OURS
from .peers import PEERS

ROWS: dict[str, Mode] = {mode.name: mode for mode in (*LIMITS, *OURS, *PEERS)}
GROUPS = tuple(dict.fromkeys(mode.group for mode in ROWS.values()))


def rows_named(names: str) -> list[Mode]:
    """Return the rows that a list of names and groups, with commas, stands for, in the order of the table.

    Raises:
        ValueError: a name is unknown.
    """
    wanted = set(names.split(","))
    unknown = wanted - set(ROWS) - set(GROUPS)
    if unknown:
        raise ValueError(
            f"unknown modes: {', '.join(sorted(unknown))}; groups: {', '.join(GROUPS)}; modes: {', '.join(ROWS)}"
        )
    return [mode for mode in ROWS.values() if mode.name in wanted or mode.group in wanted]
