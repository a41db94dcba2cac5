"""Dumps that somebody changed to have code run: the records of a step with texts of theirs, under right checksums."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aten_dump.store import records as r
from tests.torture.changing import records_of, signed

CODE = "open('PWNED', 'w')"
TEXTS = (
    f'"""\n{CODE}\n"""',
    f"'''\n{CODE}\n'''",
    f"\n{CODE}\n#",
    f"\r{CODE}\r",
    f"\u2028{CODE}\u2029",
    f"\x0c{CODE}",
    f"')\n{CODE}\n('",
    f'"); {CODE}; ("',
    f"\\\n{CODE}",
    f"{{{CODE}}}",
    f"__import__('os').system('touch PWNED') or {CODE}",
    f"x=0) or {CODE} or dict(y",
    f"\ud800\U0001f600\u202e{CODE}".encode("utf-8", "ignore").decode(),
    "lambda",
    "None",
    "__class__",
    f"0, *[{CODE}]",
    f"%s {{0.__class__}} {CODE} {{call}}",
)

Change = Callable[[list[Any], str], None]


def _field(number: int) -> Change:
    def change(row: list[Any], text: str) -> None:
        row[number] = text

    return change


def _first_argument(tree: Callable[[str], Any]) -> Change:
    """Put a tree in the place of the last argument, which need not be a tensor."""

    def change(row: list[Any], text: str) -> None:
        if len(row) > 14 and row[14]:
            row[14] = [*row[14][:-1], tree(text)]

    return change


def _keyword(row: list[Any], text: str) -> None:
    if len(row) > 15:
        row[15] = {text: 1, **(row[15] or {})}


def _written(row: list[Any], text: str) -> None:
    if len(row) > 17:
        row[17] = [text, row[16]]


def _results(row: list[Any], text: str) -> None:
    if len(row) > 16:
        row[16] = [r.TREE_DICT, text, row[16]]


PLACES: dict[str, tuple[int, Change]] = {
    "a text": (r.TEXT, _field(2)),
    "the name of an op": (r.OP, _field(3)),
    "the end of the name of an op": (r.OP, lambda row, text: row.__setitem__(3, f"{row[3]}.{text}")),
    "the name of a call": (r.OP, _field(5)),
    "the prefix of a call": (r.OP, _field(4)),
    "an argument's name": (r.OP, lambda row, text: row.__setitem__(6, [text, *row[6][1:]])),
    "a keyword": (r.CALL, _keyword),
    "a text as argument": (r.CALL, _first_argument(lambda text: text)),
    "a repr as argument": (r.CALL, _first_argument(lambda text: [r.TREE_BYTES, text])),
    "a class as argument": (r.CALL, _first_argument(lambda text: [r.TREE_OBJECT, text])),
    "a dtype as argument": (r.CALL, _first_argument(lambda text: [r.TREE_DTYPE, text])),
    "a layout as argument": (r.CALL, _first_argument(lambda text: [r.TREE_LAYOUT, text])),
    "a device as argument": (r.CALL, _first_argument(lambda text: [r.TREE_DEVICE, text])),
    "a generator as argument": (r.CALL, _first_argument(lambda text: [r.TREE_GENERATOR, text, 0])),
    "a map as argument": (r.CALL, _first_argument(lambda text: [r.TREE_DICT, text, text])),
    "what was written": (r.CALL, _written),
    "the names of results": (r.CALL, _results),
    "an error": (r.CALL, lambda row, text: row.extend([None] * (19 - len(row))) or row.__setitem__(18, text)),
}


def forged(dump: Path, into: Path, place: str, text: str, chance: random.Random) -> Path:
    """Copy a dump and put a text into all records of a kind, and into what `run.json` says of versions."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(dump, into)
    kind, change = PLACES[place]
    index = next(into.rglob("index.msgpack"))
    rows = records_of(index)
    chosen = [row for row in rows if row[0] == kind]
    for row in chosen if chance.random() < 0.5 else [chance.choice(chosen)]:
        change(row, text)
    index.write_bytes(signed(rows))
    return into


def cases() -> Iterator[tuple[str, str, random.Random]]:
    """Every text in every place."""
    for place in PLACES:
        for text in TEXTS:
            yield place, text, random.Random(f"{place} {text!r}")
