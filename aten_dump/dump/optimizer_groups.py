"""Hyperparameters of the optimizers that stepped in a recorded step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import FormatError
from ..store import records
from .argument_decoding import decode


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """One parameter group of an optimizer: ``settings["lr"]`` is what its step used, ``after["lr"]`` what is next."""

    optimizer: str  # name of its class
    number: int  # of the optimizer in the step, in the order of their first steps
    group: int  # position in param_groups
    settings: dict[str, Any]  # as the optimizer's step began; of several steps the first
    after: dict[str, Any]  # as the recorded step ended

    @property
    def name(self) -> str:
        """The class, numbered where another optimizer of the step came before, and the group."""
        return f"{self.optimizer}{f' {self.number}' if self.number else ''} group {self.group}"

    def __str__(self) -> str:
        """Its settings, without what is off, and what they are as the step ended where that is something else."""
        found = ", ".join(f"{n} {_shown(s)}" for n, s in self.settings.items() if s is not None and s is not False)
        then = ", ".join(f"{name} {_shown(new)}" for name, (_, new) in self.changed.items())
        return f"{self.name}: {found}{f'; as the step ended {then}' if then else ''}"

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """What is not the same any more as the step ended: name to before and after."""
        before, after = self.settings, self.after
        names = dict.fromkeys((*before, *after))
        return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def _shown(setting: Any) -> str:
    return f"{setting:.8g}" if isinstance(setting, float) else str(setting)


def optimizer_groups(rows: Iterable[records.OptimizerGroups], at_ns: int | None = None) -> tuple[OptimizerGroup, ...]:
    """Return the recorded groups, by optimizer and position.

    Args:
        rows: in order.
        at_ns: since the step began; `settings` are then those of the last step of the optimizer that began before.
    """
    before: dict[tuple[int, int], tuple[str, dict[str, Any]]] = {}
    after: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows:
        settings = {name: decode(tree, _no_value) for name, tree in (row.settings or {}).items()}
        for group in row.groups:
            key = row.optimizer, group
            after[key] = settings
            is_later = at_ns is not None and row.at_ns <= at_ns
            if not row.ended and (key not in before or is_later):
                before[key] = row.name, settings
    return tuple(OptimizerGroup(name, *key, settings, after[key]) for key, (name, settings) in sorted(before.items()))


def _no_value(number: int) -> NoReturn:
    raise FormatError(f"a setting of an optimizer names value {number}; it must be a literal: run `aten-dump verify`")
