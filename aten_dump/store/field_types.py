"""Checks that the fields of a decoded row have the types that records.py declares, so that nothing behind it need ask.

Theory of operation
    A checksum shows that bytes are those that were written, not that they make sense: a dump may come from a stranger,
    or from another writer. So each row is checked when it is decoded, once: types of all fields, sizes that fit into 64
    bits, tags of argument trees. The types are read from the annotations of the records; beyond them `_MORE` has what
    a kind asks of its fields together. That ids name something is checked for all rows at once (`checking.references`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from operator import mul
from typing import Any, Final, NamedTuple

from ..errors import FormatError
from . import records as r
from .shards import DTYPE_BITS

MOST_LEVELS: Final = 256  # of trees in each other, as the recorder has it; each takes three frames of a thousand
_MOST_ELEMENTS: Final = 1 << 63
_LONGEST_HEADER: Final = 100_000_008  # of a safetensors file
_DTYPE: Final = re.compile(r"[A-Z0-9_]{1,32}")
_LITERALS: Final = frozenset({int, float, str, bool, type(None)})
_NUMBERS: Final = frozenset({int, float, bool, type(None)})

Row = tuple[Any, ...]
Check = Callable[[Any], bool]


def _is(*kinds: type) -> Check:
    allowed = frozenset(kinds)
    return lambda field: type(field) in allowed


def _all_are(*kinds: type) -> Check:
    allowed = frozenset(kinds)
    return lambda field: type(field) is tuple and allowed.issuperset(map(type, field))


def _are_sizes(field: Any) -> bool:
    """Return True if a field is a list of sizes, strides or ids."""
    return type(field) is tuple and (not field or (_INTEGER.issuperset(map(type, field)) and min(field) >= 0))


_INTEGER: Final = frozenset({int})


def _are_numbers(field: Any) -> bool:
    """Return True if a field is a list of statistics: numbers, None, or pairs of numbers for complex ones."""
    if type(field) is not tuple:
        return False
    return _NUMBERS.issuperset(map(type, field)) or all(type(item) in _NUMBERS or _is_pair(item) for item in field)


def _is_pair(item: Any) -> bool:
    return type(item) is tuple and len(item) == 2 and _NUMBERS.issuperset(map(type, item))


def _is_map(field: Any) -> bool:
    return type(field) is dict and all(type(key) is str for key in field)


def _is_seconds(field: Any) -> bool:
    return _is_map(field) and all(type(second) in (int, float) for second in field.values())


def is_tree(tree: Any, levels: int = 0) -> bool:
    """Return True if something is an argument tree; a tag of a later version may stand for anything."""
    kind = type(tree)
    if kind is not tuple:
        return kind in _LITERALS
    if not tree or type(tree[0]) is not int or levels > MOST_LEVELS:
        return False
    tag = tree[0]
    if tag == r.TREE_VALUE:
        return len(tree) == 2 and type(tree[1]) is int
    if tag in (r.TREE_LIST, r.TREE_TUPLE):
        return all(is_tree(item, levels + 1) for item in tree[1:])
    if tag == r.TREE_DICT:
        keys, items = tree[1::2], tree[2::2]
        return len(keys) == len(items) and _KEYS.issuperset(map(type, keys)) and _are_trees(items, levels + 1)
    return _is_leaf(tree)


_KEYS: Final = frozenset({int, str, bool})


def _is_leaf(tree: Row) -> bool:
    tag, fields = tree[0], tree[1:]
    if tag == r.TREE_GENERATOR:
        return len(fields) == 2 and type(fields[0]) is str and type(fields[1]) in (int, type(None))
    if tag == r.TREE_COMPLEX:
        return _is_pair(fields) and None not in fields
    if 0 <= tag <= r.TREE_BYTES:
        return len(fields) == 1 and type(fields[0]) is str
    return True


def _are_trees(trees: Iterable[Any], levels: int = 0) -> bool:
    for tree in trees:
        # The two most frequent cases first: a value, a literal.
        if type(tree) is tuple and len(tree) == 2 and tree[0] == 0 and type(tree[1]) is int:
            continue
        if type(tree) not in _LITERALS and not is_tree(tree, levels):
            return False
    return True


def _are_written(field: Any) -> bool:
    """Return True if a field is a list of names and trees in turn."""
    if field is None:
        return True
    return type(field) is tuple and len(field) % 2 == 0 and _all_text(field[::2]) and _are_trees(field[1::2])


def _all_text(names: Iterable[Any]) -> bool:
    return all(type(name) is str for name in names)


class _Expected(NamedTuple):
    """What a field must be."""

    text: str
    check: Check
    by_type: bool = False  # the check looks at the type of the field alone


_CHECKS: Final = {  # by annotation
    "int": _Expected("an int", _is(int), True),
    "bool": _Expected("a bool", _is(bool, int), True),
    "bool | None": _Expected("a bool or nil", _is(bool, type(None)), True),
    "str": _Expected("a text", _is(str), True),
    "bytes": _Expected("bytes", _is(bytes), True),
    "int | None": _Expected("an int or nil", _is(int, type(None)), True),
    "str | None": _Expected("a text or nil", _is(str, type(None)), True),
    "list[int]": _Expected("a list of ints of 0 or more", _are_sizes),
    "list[str]": _Expected("a list of texts", _all_are(str)),
    "list[Any]": _Expected("a list of numbers", _are_numbers),
    "dict[str, Any]": _Expected("a map from text", _is_map),
    "dict[str, Any] | None": _Expected("a map from text or nil", lambda field: field is None or _is_map(field)),
    "dict[str, float]": _Expected("a map from text to numbers", _is_seconds),
    "Tree": _Expected("an argument tree", is_tree),
    "Sequence[Tree]": _Expected("a list of argument trees", lambda field: type(field) is tuple and _are_trees(field)),
    "Sequence[Tree] | None": _Expected("a list of names and argument trees, or nil", _are_written),
    "dict[str, Tree] | None": _Expected(
        "a map from text to argument trees, or nil",
        lambda field: field is None or (_is_map(field) and _are_trees(field.values())),
    ),
}


def _check_header(row: Row) -> str:
    config = row[7]
    wanted = {name: config[name] for name in ("level", "data", "io", "hash") if config.get(name) is not None}
    wrong = next((name for name, field in wanted.items() if type(field) is not str), None)
    if wrong is not None:
        return f"config[{wrong!r}] is no text"
    names = config.get("statistics", ())
    return "" if type(names) is tuple and _all_text(names) else "config['statistics'] is no list of texts"


def _check_value(row: Row) -> str:
    shape, stride, extra = row[6], row[7], row[9]
    if len(stride) != len(shape) and (stride or row[2]):
        return f"shape {list(shape)} has another number of dimensions than stride {list(stride)}"
    if math.prod(shape) >= _MOST_ELEMENTS or (0 in shape and math.prod(filter(None, shape)) >= _MOST_ELEMENTS):
        return f"shape {list(shape)} has more elements than 64 bits count"
    if stride and row[4] + sum(map(mul, shape, stride)) >= _MOST_ELEMENTS:
        return f"stride {list(stride)} reaches further than 64 bits count"
    return "" if extra is None else _check_extra(row[1], extra)


_EXTRA: Final[dict[str, Check]] = {
    "layout": _is(str),
    "class": _is(str),
    "device": _is(str),
    "local": _is(int),
    "memory": _is(int),
    "coalesced": _is(bool, int, type(None)),
    "parts": lambda field: _is_map(field),
    "quantized": lambda field: _is_map(field),
    "placements": _all_are(str),
    "mesh": lambda field: _is_map(field) and _are_sizes(field.get("shape")) and _are_sizes(field.get("ranks")),
}


def _check_extra(id: int, extra: dict[str, Any]) -> str:
    for name, field in extra.items():
        if name in _EXTRA and not _EXTRA[name](field):
            return f"extra[{name!r}] is {field!r:.100}"
    parts = extra.get("parts") or {}
    later = [part for part in parts.values() if type(part) is int and not 0 < part < id]
    if later:
        return f"it is made of value {later[0]}, which is no earlier one"
    if "mesh" in extra and math.prod(extra["mesh"]["shape"]) != len(extra["mesh"]["ranks"]):
        return "extra['mesh'] has another number of ranks than its shape says"
    return ""


def _check_shard(row: Row) -> str:
    return "" if 8 <= row[2] <= _LONGEST_HEADER else f"header_bytes {row[2]} are none of a safetensors file"


def _check_blob(row: Row) -> str:
    offset, nbytes, dtype, shape = row[3:7]
    if offset < 0 or nbytes < 0 or offset + nbytes >= _MOST_ELEMENTS:
        return f"it has offset {offset} and {nbytes} bytes; neither may be negative or beyond 64 bits"
    if not _DTYPE.fullmatch(dtype):
        return f"dtype {dtype!r:.100} is none of safetensors"
    bits = DTYPE_BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != nbytes * 8:
        return f"{dtype}{list(shape)} is not {nbytes} bytes"
    return "" if len(row[7]) == 8 else f"its checksum has {len(row[7])} bytes, not 8"


_MORE: Final[dict[int, Callable[[Row], str]]] = {
    r.HEADER: _check_header,
    r.VALUE: _check_value,
    r.SHARD: _check_shard,
    r.BLOB: _check_blob,
}


class RowType:
    """The types of one kind of record."""

    def __init__(self, kind: int) -> None:
        record = r.RECORD_TYPES[kind]
        self.name = record.__name__
        self._fields = record._fields  # type: ignore[attr-defined]
        annotations = record.__annotations__.values()  # as text, which NamedTuple wraps
        self._expected = [_CHECKS[str(getattr(found, "__forward_arg__", found))] for found in annotations]
        # Fields whose type alone does not suffice.
        self._inner = [(at, found.check) for at, found in enumerate(self._expected) if not found.by_type]
        self._more = _MORE.get(kind)
        defaults = record._field_defaults  # type: ignore[attr-defined]
        self._defaults: Row = tuple(defaults.values())
        self._least = len(self._fields) - len(self._defaults)
        self._right: set[tuple[type, ...]] = set()  # types of rows whose other fields are right

    def expect_fields(self, count: int, where: str) -> None:
        """Raise where a record has fewer fields than it must have."""
        if count < self._least:
            raise FormatError(
                f"{where} has a {self.name} record of {count} fields, it must have {self._least}; "
                "run `aten-dump verify`"
            )

    def default(self, field: int) -> Any:
        """Return what stands for a field that was left out; None for one that may not be."""
        return self._defaults[field - self._least] if self._least <= field < len(self._fields) else None

    def whole(self, row: Row) -> Row:
        """Return a row with all its fields: those that were left out have their default."""
        missing = len(self._fields) - len(row)
        return row + self._defaults[-missing:] if missing > 0 else row

    def problem(self, row: Row) -> str:
        """Return what is wrong with a row, ``""`` for nothing; fields of newer versions are not looked at."""
        types = tuple(map(type, row))
        if types not in self._right:
            wrong = self._wrong_field(row)
            if wrong:
                return wrong
            self._right.add(types)
        for at, check in self._inner:
            if not check(row[at]):
                return self._wrong_field(row)
        return self._more(row) if self._more is not None else ""

    def _wrong_field(self, row: Row) -> str:
        for name, expected, field in zip(self._fields, self._expected, row, strict=False):
            if not expected.check(field):
                return f"{name} is {field!r:.100}, it must be {expected.text}"
        return ""


ROW_TYPES: Final = {kind: RowType(kind) for kind in r.RECORD_TYPES}
