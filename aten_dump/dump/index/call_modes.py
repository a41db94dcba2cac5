"""Grad mode of each call, and whether its module was in training.

Theory of operation
    A `Mode` record holds for its thread from one call on until the next record; so each call is looked up among those
    of its thread. A backward call runs in no module as a rule: it is in training if its forward call was.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...choices import MODES
from ...errors import ConfigError
from ...store import records
from ...store.raw_rows import MadeRows, RawRows
from .call_table import CallTable
from .typed_rows import Groups

_UNKNOWN: Final = -1  # beside 0 and 1


class CallModes:
    """What `Mode` records say of all calls, by position."""

    def __init__(self, rows: RawRows | MadeRows, calls: CallTable) -> None:
        self._rows = rows
        self._calls = calls

    def grad(self, position: int) -> bool | None:
        """Return True if grad mode was on when the call at `position` began; None if it is not known."""
        return _fact(self._facts["grad"][position])

    def training(self, position: int) -> bool | None:
        """Return True if the innermost module was in training; None outside of modules, and if it is not known."""
        return _fact(self._facts["training"][position])

    def are(self, mode: str) -> NDArray[np.bool_]:
        """Return for each call whether it ran in one of `MODES`.

        Raises:
            ConfigError: there is no such mode.
        """
        if mode not in MODES:
            raise ConfigError(f"filter mode is {mode!r}; allowed: {', '.join(MODES)}")
        fact, wanted = MODES[mode]
        return np.equal(self._facts[fact], wanted)

    @cached_property
    def _facts(self) -> dict[str, NDArray[np.int8]]:
        facts = {name: np.full(len(self._calls), _UNKNOWN, np.int8) for name in ("grad", "training")}
        told = [_row_facts(row) for row in self._rows]
        by_thread = Groups(self._calls.column("thread"))
        threads, first_calls = self._rows.columns(1, 2)
        for thread, group in Groups(threads).items():
            rows = np.asarray(group)[np.argsort(first_calls[group], kind="stable")]
            positions = np.asarray(by_thread.get(thread, ()), np.int64)
            last = np.searchsorted(first_calls[rows], self._calls.column("id")[positions], side="right") - 1
            positions, last = positions[last >= 0], last[last >= 0]
            for at, name in enumerate(facts):
                facts[name][positions] = np.array([told[row][at] for row in rows.tolist()], np.int8)[last]
        self._inherit(facts["training"])
        return facts

    def _inherit(self, training: NDArray[np.int8]) -> None:
        """Take what is known of forward calls for their backward: earlier calls first, as backward has backward too."""
        forward = self._calls.column("forward")
        open_ones = np.flatnonzero((training == _UNKNOWN) & (forward != 0))
        for position, call in zip(open_ones.tolist(), forward[open_ones].tolist(), strict=True):
            there = self._calls.places.get(call)
            if there is not None:
                training[position] = training[there]


def _row_facts(row: tuple[object, ...]) -> tuple[int, int]:
    mode = records.Mode._make(row[:5])
    return int(bool(mode.grad)), _UNKNOWN if mode.training is None else int(mode.training)


def _fact(code: int) -> bool | None:
    return None if code == _UNKNOWN else bool(code)
