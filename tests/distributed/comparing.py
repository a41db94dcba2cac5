"""Compares two dumps of one program, call by call and value by value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.capture.bits import is_value, raw


def facts_of(value: Any) -> tuple[Any, ...]:
    """All that a dump says of a value, but for where its memory was."""
    has_data = not (value.undefined or value.opaque)
    return (
        value.id, tuple(value.shape), value.stride, value.dtype_name, value.storage, value.version, value.storage_offset,
        value.undefined, value.opaque, value.hash, repr(value.extra), raw(value.tensor()) if has_data and value.has_data else None,
    )  # fmt: skip


def described(tree: Any) -> Any:
    """A tree with its values as ids."""
    if is_value(tree):
        return f"value {tree.id}"
    if isinstance(tree, dict):
        return {key: described(item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(described(item) for item in tree)
    return repr(tree)


def differences(one: Any, two: Any) -> Iterator[str]:
    """What differs between two RankDumps, in words; that there is nothing to compare is a difference, too."""
    if not one.calls or not one.values:
        yield "nothing was recorded"
    if len(one.calls) != len(two.calls) or len(one.values) != len(two.values):
        yield f"{len(one.calls)} calls and {len(one.values)} values, {len(two.calls)} and {len(two.values)}"
    for a, b in zip(one.calls, two.calls, strict=False):
        for name in ("id", "name", "op", "phase", "sequence_nr", "module"):
            if getattr(a, name) != getattr(b, name) and name != "sequence_nr":
                yield f"{a.name}: {name} {getattr(a, name)}, {getattr(b, name)}"
        for name in ("inputs", "outputs"):
            if described(getattr(a, name)) != described(getattr(b, name)):
                yield f"{a.name}: {name} {described(getattr(a, name))}, {described(getattr(b, name))}"
    for a, b in zip(one.values, two.values, strict=False):
        if facts_of(a) != facts_of(b):
            yield f"value {a.id}: {facts_of(a)[:-1]}, {facts_of(b)[:-1]}, from {a.producer}, for {a.consumers[:2]}"
