"""Reads what a request says of a slice, and makes its section."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final, cast

from ...dump import Value
from ...errors import ConfigError, MissingDataError
from .served_dump import ServedDump
from .tensor_sections import elements_section, map_section
from .tensor_slices import SHOWN, Shown, Slice, shown_slice

# What a request may say: `value` and `other` are "side/step/rank/id", `dims` and `at` are numbers with commas.
NAMES: Final = ("part", "value", "other", "dims", "at", "show", "share", "row", "column")
PARTS: Final = ("map", "elements")
_MOST_TEXT: Final = 400


def tensor_section(served: ServedDump, query: Mapping[str, str]) -> bytes | None:
    """Return the map or the elements of a slice.

    Raises:
        ConfigError: the request says something that is not allowed.
        MissingDataError: there is no such value, or nothing of it was recorded.
        FormatError: the dump is damaged there.
    """
    for name, text in query.items():
        if name not in NAMES or len(text) > _MOST_TEXT:
            raise ConfigError(f"a request about a tensor has {name[:80]!r}; allowed: {', '.join(NAMES)}")
    part, show = query.get("part", "map"), query.get("show", "tensor")
    if part not in PARTS or show not in SHOWN:
        raise ConfigError(f"part is {part!r}, show is {show!r}; allowed: {', '.join(PARTS)}; {', '.join(SHOWN)}")
    with ExitStack() as held:
        value = _value(served, held, query.get("value", ""))
        if value is None:
            return None
        other = _value(served, held, query["other"]) if query.get("other") and show != "tensor" else None
        found = Slice.of(value.shape, _numbers(query, "dims"), _numbers(query, "at"))
        slice_of = shown_slice(found, value, other, cast(Shown, show))
    if part == "elements":
        row, column = _numbers({**query, "place": f"{query.get('row', 0)},{query.get('column', 0)}"}, "place")
        return elements_section(slice_of, row, column)
    return map_section(slice_of, share=_share(query.get("share", "1")), is_distance=show == "ulp")


def _value(served: ServedDump, held: ExitStack, text: str) -> Value | None:
    """Return a value by its place; None where there is none."""
    side, _, numbers = text.partition("/")
    place = [int(number) for number in numbers.split("/") if number.isdecimal() and len(number) < 10]
    if len(place) != 3 or numbers.count("/") != 2:
        raise ConfigError(f"a value is named {text!r}; it must be side/step/rank/id")
    step, rank, id = place
    found = served.place(side, step, rank)
    if found is None:
        return None
    opened = held.enter_context(served.opened.use(found, links=False))
    if id not in opened.tables.values:
        return None
    value = opened.value_by_id(id)
    if value.undefined or not value.has_data:
        raise MissingDataError(_why_not(value))
    return value


def _why_not(value: Value) -> str:
    """Return why a value has no bytes, as reading it says."""
    try:
        value.tensor()
    except MissingDataError as error:
        return str(error)
    return f"{value!r} is undefined memory"


def _numbers(query: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the numbers of a list with commas.

    Raises:
        ConfigError: one is no number from 0 up.
    """
    texts = [text for text in query.get(name, "").split(",") if text != ""]
    if any(not text.isdecimal() or len(text) > 15 for text in texts):
        raise ConfigError(f"{name} is {query[name]!r}; allowed are numbers from 0 up, with commas between")
    if name == "dims" and len(texts) not in (0, 2):
        raise ConfigError(f"dims is {query[name]!r}; two dimensions are shown")
    return tuple(int(text) for text in texts)


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ConfigError(f"share is {text!r}; allowed is a number over 0 and up to 1")
    return found
