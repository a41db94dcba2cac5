"""The optimizers of the program that are alive, those too that do not step while a step is recorded."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import TypeVar

from torch.optim import Optimizer

_Kind = TypeVar("_Kind")


def live(kind: type[_Kind]) -> list[_Kind]:
    """Return the objects of a class, or of one derived from it, that are alive in this process."""
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]  # no isinstance: it asks proxies


class LiveOptimizers:
    """Finds optimizers by what they hold. Keeps none alive.

    All objects of the process are gone through for it, a fifth of a second per million. So they are only where no
    known optimizer holds a parameter, and not again for the same parameters and optimizers.
    """

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Optimizer]] = {}
        self._asked: tuple[frozenset[str], frozenset[int]] | None = None

    def holding(self, names: frozenset[str], held_by: Callable[[Optimizer], list[str]]) -> list[Optimizer]:
        """Return the optimizers that are known once those were looked for that hold some parameters.

        Args:
            names: of the parameters.
            held_by: returns the names of what an optimizer holds.
        """
        found = self._alive()
        asked = names, frozenset(map(id, found))
        if asked != self._asked and not names.issubset(name for one in found for name in held_by(one)):
            self._known = {id(one): weakref.ref(one) for one in live(Optimizer) if vars(one).get("param_groups")}
            found = self._alive()
            self._asked = names, frozenset(map(id, found))
        return found

    def _alive(self) -> list[Optimizer]:
        return [one for reference in self._known.values() if (one := reference()) is not None]
