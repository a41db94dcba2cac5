"""Dumps that somebody made to harm who reads them: circles, sizes without end, links, devices, deep trees."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aten_dump.store import records as r
from tests.torture.changing import records_of, signed
from tests.torture.outside import NAME as OUTSIDE

Harm = Callable[[Path, random.Random], None]


def _rows(kind: int, change: Callable[[list[Any], random.Random], None]) -> Harm:
    """Change one record of a kind, under right checksums."""

    def harm(dump: Path, random: random.Random) -> None:
        index = random.choice(sorted(dump.rglob("index.msgpack")))
        rows = records_of(index)
        chosen = [row for row in rows if row[0] == kind]
        if chosen:
            change(random.choice(chosen), random)
        index.write_bytes(signed(rows))

    return harm


def _set(field: int, *values: Any) -> Callable[[list[Any], random.Random], None]:
    def change(row: list[Any], random: random.Random) -> None:
        while len(row) <= field:
            row.append(None if len(row) > 16 else 0)
        row[field] = random.choice(values)

    return change


def _own_parent(row: list[Any], random: random.Random) -> None:
    row[2] = row[1]


def _deep(row: list[Any], random: random.Random) -> None:
    tree: Any = [0, 1]
    for _ in range(random.choice((300, 450, 505))):
        tree = [1, tree]
    row[14:] = [[tree]]


def _file(name: str, make: Callable[[Path], None]) -> Harm:
    """Put something else in the place of files of a name."""

    def harm(dump: Path, random: random.Random) -> None:
        file = random.choice(sorted(dump.rglob(name)) or sorted(dump.rglob("index.msgpack")))
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        make(file)

    return harm


def _to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _linked(name: str, target: str) -> Harm:
    """Put a link into the tree beside the dump in the place of a file or folder, or where the tools would make one."""

    def harm(dump: Path, random: random.Random) -> None:
        rank = random.choice(sorted(dump.glob("step*/rank*")))
        found = sorted(dump.rglob(name)) or [rank / name]
        path = random.choice(found)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(dump.absolute().parent / OUTSIDE / target)

    return harm


def _hole(name: str) -> Harm:
    def harm(dump: Path, random: random.Random) -> None:
        os.truncate(random.choice(sorted(dump.rglob(name)) or sorted(dump.rglob("index.msgpack"))), 1 << 40)

    return harm


def _bomb(path: Path) -> None:
    """An index whose first record claims arrays of billions of items in each other."""
    path.write_bytes(b"\x98\x01" + b"\xdd\x7f\xff\xff\xff" * 400 + bytes(1 << 20))


HARMS: dict[str, Harm] = {
    "a call is its own parent": _rows(r.CALL, _own_parent),
    "a stack is its own parent": _rows(r.STACK, _own_parent),
    "a call is its own forward": _rows(r.CALL, lambda row, random: _set(13, row[1])(row, random)),
    "a value is its own part": _rows(
        r.VALUE, lambda row, random: _set(9, {"layout": "sparse_coo", "parts": {"indices": row[1]}})(row, random)
    ),
    "a tensor of 2^40 elements": _rows(r.VALUE, lambda row, random: row.__setitem__(slice(6, 8), [[1 << 40], [0]])),
    "a tensor of 2^80 elements": _rows(
        r.VALUE, lambda row, random: row.__setitem__(slice(6, 8), [[1 << 40] * 2, [0, 0]])
    ),
    "strides without end": _rows(r.VALUE, _set(7, [1 << 62], [-1], [1 << 62, 1 << 62])),
    "an offset without end": _rows(r.DATA, _set(3, 1 << 62, -1, 1 << 40)),
    "a blob without end": _rows(r.BLOB, _set(4, 1 << 62, 1 << 40, -1)),
    "a shard without end": _rows(r.SHARD, _set(1, 1 << 60, -1, 7)),
    "a header without end": _rows(r.SHARD, _set(2, 1 << 60, -1, 0)),
    "trees in each other": _rows(r.CALL, _deep),
    "names of other types": _rows(r.TEXT, _set(2, "\x1b[2J", "a" * 100_000, "../" * 50, 5)),
    "config of other types": _rows(
        r.HEADER, _set(7, {"statistics": 3}, {"data": [1]}, {}, {"statistics": ["x"] * 1000})
    ),
    "commit of other types": _rows(r.COMMIT, _set(5, [1 << 62], ["x"], 7, [-1])),
    "another step": _rows(r.HEADER, _set(2, 99, -1, 1 << 62)),
    "an index that is a link": _file("index.msgpack", _to("/etc/passwd")),
    "an index that is another's": _linked("index.msgpack", "dump/step0/rank0/index.msgpack"),
    "a shard that is another's file": _linked("shard-*", "kept.txt"),
    "a rank that is another's": _linked("rank0", "dump/step0/rank0"),
    "a step that is another's": _linked("step0", "dump/step0"),
    "a run.json that is another's": _linked("run.json", "kept.txt"),
    "a lock that is another's": _linked(".lock", "kept.txt"),
    "an index to be that is another's": _linked("index.msgpack.partial", "kept.txt"),
    "an index that never ends": _file("index.msgpack", _to("/dev/zero")),
    "an index that is a FIFO": _file("index.msgpack", lambda path: os.mkfifo(path)),
    "an index that is a folder": _file("index.msgpack", lambda path: path.mkdir()),
    "an index that claims too much": _file("index.msgpack", _bomb),
    "an index with a hole": _hole("index.msgpack"),
    "a shard that is a link": _file("shard-*", _to("/etc/passwd")),
    "a shard that never ends": _file("shard-*", _to("/dev/zero")),
    "a shard that is a FIFO": _file("shard-*", lambda path: os.mkfifo(path)),
    "a shard with a hole": _hole("shard-*"),
    "a run.json that is a FIFO": _file("run.json", lambda path: os.mkfifo(path)),
    "a run.json that never ends": _file("run.json", _to("/dev/zero")),
    "a step that is a link": _file("step0", _to("/")),
    "a rank that is a link": _file("rank0", _to("/etc")),
}
