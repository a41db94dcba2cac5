"""Collects what readers find damaged in shards while a block runs, also where their callers go on without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_seen: Final[ContextVar[dict[str, None] | None]] = ContextVar("damage_seen", default=None)


@contextmanager
def damage_seen() -> Iterator[dict[str, None]]:
    """Collect the sentences about damage found in this block and thread, each once; blocks around it get them too."""
    outer, found = _seen.get(), dict[str, None]()
    token = _seen.set(found)
    try:
        yield found
    finally:
        _seen.reset(token)
        if outer is not None:
            outer.update(found)


def note_damage(sentence: str) -> None:
    """Add a sentence for whoever listens."""
    found = _seen.get()
    if found is not None:
        found[sentence] = None
