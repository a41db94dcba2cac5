"""Functions of torch that are replaced while a step is recorded, and put back as they were.

Theory of operation
    A `Patch` sets an attribute of a class or module. Undone, it puts back what that object itself had, so that an
    inherited method is inherited again. If somebody has replaced our function since, theirs stays, with ours below it:
    each replacement must therefore pass everything through once nothing is recorded any more.
"""

from __future__ import annotations

from typing import Any, Final

_INHERITED: Final = object()


class Patch:
    """One attribute that is replaced until `undo`."""

    __slots__ = ("_before", "_name", "_ours", "_owner")

    def __init__(self, owner: Any, name: str, ours: Any) -> None:
        self._owner = owner
        self._name = name
        self._before = vars(owner).get(name, _INHERITED)
        self._ours = ours
        setattr(owner, name, ours)

    def undo(self) -> bool:
        """Put back what was there, unless somebody else has replaced ours since; return True if ours is gone."""
        if vars(self._owner).get(self._name) is not self._ours:
            return False
        if self._before is _INHERITED:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)
        return True
