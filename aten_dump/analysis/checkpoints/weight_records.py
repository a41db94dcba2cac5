"""What was found of one weight, and the numbers in its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?=\.|$)")  # of a layer or an expert: between dots

_PLACE: Final = re.compile(r"(?<![^.])(?:\d+|\*)(?=\.|$)")

COLUMNS: Final = (
    "target", "baseline", "how", "text", "part", "accounted", "ulp", "relative_l2", "differing", "elements",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor, or some of its vectors."""

    name: str
    part: str = ""  # in words; "" for the whole tensor
    start: int = 0  # the first of the vectors
    size: int = 0  # how many


@dataclass(frozen=True, slots=True)
class Link:
    """A slot of the target that holds what a slot of the baseline holds."""

    ours: Slot
    theirs: Slot

    @property
    def turned(self) -> Link:
        """The same, as the other direction has it."""
        return Link(self.theirs, self.ours)


@dataclass(frozen=True, slots=True)
class Weight:
    """How tensors of the target are laid out in tensors of the baseline; one side may have none."""

    target: tuple[str, ...]
    baseline: tuple[str, ...]
    how: tuple[str, ...]  # kinds: equal, cast, transposed, permuted, ..., unlike, exchanged, altered, missing, extra
    text: str
    accounted: bool = True
    ulp: float | None = None  # most that rounding moved an element, of the coarser dtype
    relative_l2: float | None = None
    differing: int | None = None  # elements beyond what rounding allows
    elements: int | None = None
    part: str = ""  # of the baseline's tensors, where it is not all of them: rows 0-767 of 2304
    links: tuple[Link, ...] = ()
    layout: str = ""  # `text` without what rounding did
    sure: bool = False  # the contents alone decide the partner: neither side has a copy

    @property
    def row(self) -> dict[str, Any]:
        """All of it by column, as CSV and JSON have it."""
        cells = {name: getattr(self, name) for name in COLUMNS}
        return cells | {name: " + ".join(cells[name]) for name in ("target", "baseline", "how")}


@lru_cache(maxsize=1 << 16)
def template(name: str) -> str:
    """Return a name with ``*`` for its numbers."""
    return _NUMBER.sub("*", name)


@lru_cache(maxsize=1 << 16)
def numbers(name: str) -> tuple[int, ...]:
    """Return the numbers in a name."""
    return tuple(map(int, _NUMBER.findall(name)))


def places(name: str) -> list[str]:
    """Return the numbers in a name or a template as texts, ``*`` included."""
    return _PLACE.findall(name)


def with_places(name: str, shown: Sequence[str]) -> str:
    """Return a name or a template with other texts for its numbers."""
    left = iter(shown)
    return _PLACE.sub(lambda _: next(left), name)


def filled(name: str, own: Sequence[int]) -> str:
    """Return a template with a number for each ``*``, that in the same place; without one there it stays."""
    shown = [str(own[at]) if one == "*" and at < len(own) else one for at, one in enumerate(places(name))]
    return with_places(name, shown)


def containers(name: str) -> list[str]:
    """Return the numbered modules that a tensor is in: ``h.1`` and ``h.1.mlp.0`` of ``h.1.mlp.0.weight``."""
    return [name[: match.end()] for match in _NUMBER.finditer(name)]
