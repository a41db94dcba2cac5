"""Ways to spoil a dump: bytes of its files, or fields of its records under right checksums."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import xxhash

from aten_dump.store.records import CHECK

INTERESTING: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 256, 65_535, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 40), (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, -(1 << 63), 0.0, -0.0, 1.5, float("nan"), float("inf"), "", "x", "a" * 300, "\x00", "../../etc",
    "\x1b[31mred", "=cmd|' /C calc'!A0", "float32", "aten::add", b"", b"\x00", b"12345678", [], [0], [1, 2], [0, 1], [0, -1],
    [3, 1, [0, 1]], [1, [1, [1, [1]]]], [99, 1], [[]], {}, {"a": 1}, {"layout": "sparse_coo"}, {1: 2},
    {"parts": {"indices": 1, "values": 1}}, {"quantized": {}}, {"local": 1}, {"mesh": 1}, msgpack.ExtType(1, b"x"),
)  # fmt: skip


def corrupted(dump: Path, random: random.Random) -> str:
    """Spoil the bytes of one file of a dump; return what was done."""
    file = random.choice(sorted(path for path in dump.rglob("*") if path.is_file() and path.name != "expected.json"))
    data = bytearray(file.read_bytes())
    name = f"{file.relative_to(dump)}"
    kind = random.choice(list(_SPOILERS))
    file.write_bytes(_SPOILERS[kind](data, random))
    return f"{kind} of {name}"


def _flipped(data: bytearray, random: random.Random) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 8, 64))):
        if data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _cut(data: bytearray, random: random.Random) -> bytes:
    return bytes(data[: random.randrange(len(data) + 1)])


def _zeroed(data: bytearray, random: random.Random) -> bytes:
    start = random.randrange(len(data) + 1)
    stop = min(len(data), start + random.choice((1, 16, 512, 4096)))
    data[start:stop] = bytes(stop - start)
    return bytes(data)


def _lengthened(data: bytearray, random: random.Random) -> bytes:
    return bytes(data) + random.randbytes(random.choice((1, 20, 4096)))


def _repeated(data: bytearray, random: random.Random) -> bytes:
    start, stop = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return bytes(data[:stop] + data[start:])


def _removed(data: bytearray, random: random.Random) -> bytes:
    start = random.randrange(len(data) + 1)
    return bytes(data[:start] + data[start + random.choice((1, 3, 64, 5000)) :])


def _noise(data: bytearray, random: random.Random) -> bytes:
    return random.randbytes(random.choice((0, 1, 100, 5000)))


_SPOILERS: dict[str, Callable[[bytearray, random.Random], bytes]] = {
    "flipped bits": _flipped,
    "cut": _cut,
    "zeros": _zeroed,
    "more bytes": _lengthened,
    "bytes twice": _repeated,
    "fewer bytes": _removed,
    "noise": _noise,
}


def mutated(dump: Path, random: random.Random) -> str:
    """Change one or two fields of records of an index, and sign it again; return what was done."""
    index = random.choice(sorted(dump.rglob("index.msgpack")))
    rows = records_of(index)
    said = []
    for _ in range(random.choice((1, 1, 1, 2))):
        at = random.randrange(len(rows))
        said.append(f"record {at} ({rows[at][0]}): {_mutate(rows, at, random)}")
    index.write_bytes(signed(rows))
    return "; ".join(said)


def _mutate(rows: list[list[Any]], at: int, random: random.Random) -> str:
    row = rows[at]
    kind = random.choice(("field", "field", "field", "inner", "swap", "drop", "twice", "short"))
    if kind == "drop":
        del rows[at]
    elif kind == "twice":
        rows.insert(random.randrange(len(rows)), list(row))
    elif kind == "short":
        del row[random.randrange(1, len(row)) :]
    elif kind == "swap":
        other = random.choice(rows)
        field = random.randrange(1, min(len(row), len(other))) if min(len(row), len(other)) > 1 else 0
        row[field], other[field] = other[field], row[field]
    else:
        field = random.randrange(1, len(row)) if len(row) > 1 else 0
        inner = row[field]
        if kind == "inner" and isinstance(inner, (list, dict)) and inner:
            return _mutate_inner(inner, random)
        row[field] = _near(row[field], random)
        return f"field {field} = {row[field]!r:.60}"
    return kind


def _mutate_inner(tree: Any, random: random.Random) -> str:
    while True:
        key = random.randrange(len(tree)) if isinstance(tree, list) else random.choice(list(tree))
        if isinstance(tree[key], (list, dict)) and tree[key] and random.random() < 0.7:
            tree = tree[key]
            continue
        tree[key] = _near(tree[key], random)
        return f"inner {key} = {tree[key]!r:.60}"


def _near(found: Any, random: random.Random) -> Any:
    """Something that the type of a field may be taken for, or anything."""
    if isinstance(found, int) and random.random() < 0.5:
        return random.choice((found + 1, found - 1, -found, found * 2, found << 20))
    if isinstance(found, str) and random.random() < 0.3:
        return found + random.choice(("x", ".", "\n", "\x1b[2J", "\u202e"))
    if isinstance(found, list) and found and random.random() < 0.5:
        return random.choice((found[:-1], found * 2, [*found, *found[:1]], found[::-1], [found]))
    return random.choice(INTERESTING)


def records_of(index: Path) -> list[list[Any]]:
    """The records of an index without its checks."""
    unpacker = msgpack.Unpacker(index.open("rb"), use_list=True, strict_map_key=False)
    return [row for row in unpacker if row[0] != CHECK]


def signed(rows: list[Any], size: int = 400) -> bytes:
    """An index of some records with right checks, one after each `size` records."""
    data = b""
    start = 0
    for batch in _batches(rows, size):
        data += b"".join(msgpack.packb(row) for row in batch)
        check = msgpack.packb([CHECK, len(data), xxhash.xxh3_64_digest(data[start:])])
        start = len(data)
        data += check
    return data


def _batches(rows: list[Any], size: int) -> Iterator[list[Any]]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


def copied(dump: Path, into: Path) -> Path:
    """Copy a dump to where there is none."""
    shutil.rmtree(into, ignore_errors=True)
    return Path(shutil.copytree(dump, into))
