"""Dumps of other tools that somebody, or a disk, has spoiled: bytes of their files, fields of their tables, claims."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.torture.changing import INTERESTING, corrupted

MSPROBE = Path(__file__).parents[1] / "golden" / "foreign" / "msprobe"
MINDSPORE = Path(__file__).parents[1] / "golden" / "foreign" / "mindspore"
MANY = 12_000  # rows, entries or levels: what takes their square takes minutes

# What a cell of a table or a field of JSON may hold instead of what a tool writes.
GARBAGE: tuple[Any, ...] = (
    *(field for field in INTERESTING if isinstance(field, (str, int, float, list, dict, type(None)))),
    *(
        "inf",
        "-inf",
        "nan",
        "1e400",
        "9" * 5000,
        "=1+1",
        "é\ud800",
        "1_0",
        " 7 ",
        "0x10",
        "_dynamo",
        "Tensor",
        "(1e400,)",
    ),
    *([1e400], [10**400], [1 << 40] * 3, [2.5], [[1]], [1] * 300, [1 << 62] * 300, 3e8, 300_000_000, -1),
    *("a" * 200_000, "../../kept.txt", "x" * 300, [None] * 10, {"type": "torch.Tensor"}, {"type": 3, "shape": 3}),
)
Harm = Callable[[Path, random.Random], object]


def spoiled_fields(dump: Path, chance: random.Random) -> str:
    """Put garbage into some fields of one table."""
    tables = sorted(path for path in dump.rglob("*") if path.suffix in (".json", ".csv"))
    table = chance.choice(tables)
    change = _json_fields if table.suffix == ".json" else _csv_cells
    return f"{table.name}: {change(table, chance)}"


def _json_fields(table: Path, chance: random.Random) -> list[str]:
    content = json.loads(table.read_text(encoding="utf-8")) or {"data": {}}
    said = []
    for _ in range(chance.choice((1, 1, 2, 5))):
        tree, path = content, []
        while True:
            key = chance.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
            path.append(key)
            if isinstance(tree[key], (dict, list)) and tree[key] and chance.random() < 0.85:
                tree = tree[key]
                continue
            break
        tree[key] = copy.deepcopy(chance.choice(GARBAGE))
        said.append(f"{path} = {tree[key]!r:.40}")
    table.write_text(json.dumps(content), encoding="utf-8")
    return said


def _csv_cells(table: Path, chance: random.Random) -> list[str]:
    rows = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8"))))
    said = []
    for _ in range(chance.choice((1, 1, 2, 5))):
        row = chance.choice(rows or [[]])
        at = chance.randrange(len(row) + 1)
        row[at : at + 1] = [str(chance.choice(GARBAGE))]
        said.append(f"column {at} = {row[at]!r:.40}")
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    table.write_bytes(text.getvalue().encode("utf-8", "surrogatepass" if chance.random() < 0.5 else "replace"))
    return said


def _rows(*rows: str) -> Harm:
    """Write a table of statistics anew, under MindSpore's heading."""
    heading = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Count"

    def harm(dump: Path, chance: random.Random) -> None:
        folder = next(path.parent for path in sorted(dump.rglob("*.npy")))
        (folder / "statistic.csv").write_bytes("\n".join([heading, *rows]).encode("utf-8", "surrogateescape"))

    return harm


def _entries(make: Callable[[], dict[str, Any]], table: str = "dump.json") -> Harm:
    """Write a table of msprobe's anew."""

    def harm(dump: Path, chance: random.Random) -> None:
        file = chance.choice(sorted(dump.rglob(table)))
        content = make()
        if table == "dump.json":
            content = {"task": "tensor", "level": "L1", "data": content}
        file.write_text(json.dumps(content), encoding="utf-8")

    return harm


def _tensor(**facts: Any) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], **facts}


def _call(**facts: Any) -> dict[str, Any]:
    return {"Torch.add.0.forward": {"input_args": [_tensor(**facts)], "input_kwargs": {}, "output": []}}


def _file(suffix: str, make: Callable[[Path], object]) -> Harm:
    """Put something else in the place of a tensor's file, or of a table."""

    def harm(dump: Path, chance: random.Random) -> None:
        path = chance.choice(sorted(dump.rglob(f"*{suffix}")))
        path.unlink()
        make(path)

    return harm


def _claims(shape: tuple[int, ...]) -> Callable[[Path], object]:
    """An array of numpy's whose header claims a shape that no bytes follow."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})

    return make


def _bomb(path: Path) -> None:
    """What torch.save writes, with a call that makes memory in the place of the tensor."""
    torch.save(torch.ones(3), path)
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    harm = pickle.dumps(_Bomb(), protocol=2)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, harm if name.endswith("data.pkl") else data)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (1 << 33,)


def _packed(path: Path) -> None:
    """A gigabyte of zeros in a file of a megabyte."""
    torch.save(torch.ones(3), path)
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, bytes(1 << 26) if "/data/" in name else data)


def _expanded(path: Path) -> None:
    torch.save(torch.ones(1).expand(1 << 36), path)


def _hole(path: Path) -> None:
    _claims((1 << 38,))(path)
    os.truncate(path, 1 << 40)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _linked_folder(dump: Path, chance: random.Random) -> None:
    folder = chance.choice(sorted({path.parent for path in dump.rglob("*") if path.is_file()}))
    shutil.rmtree(folder)
    folder.symlink_to("/etc")


_ADD = "Add,Default_Add-op1,0,0,10"
_MINDSPORE: dict[str, Harm] = {
    "a slot without end": _rows(f"{_ADD},output,300000000,4,float32,(1),1,1"),
    "slots with gaps": _rows(*(f"{_ADD},output,{1000 * n},4,float32,(1),1,1" for n in range(300))),
    "a negative slot": _rows(f"{_ADD},output,-1,4,float32,(1),1,1"),
    "neither input nor output": _rows(f"{_ADD},sideways,0,4,float32,(1),1,1"),
    "a count that is infinite": _rows(f"{_ADD},output,0,4,float32,(1),1,inf"),
    "one slot many times": _rows(*[f"{_ADD},output,0,4,float32,(1),1,1"] * MANY),
    "a heading without end": lambda dump, chance: _wide(dump),
    "a field without end": _rows(f"Add,{'a' * 300_000},0,0,10,output,0,4,float32,(1),1,1"),
    "a name of ours many times": _rows(f"Add,{'_Aten-' * 20_000},0,0,10,output,0,4,float32,(1),1,1"),
    "text that is not UTF-8": _rows("Add,\udcff\udcfe,0,0,10,output,0,4,float32,(1),1,1"),
    "a shape without end": _rows(f'{_ADD},output,0,4,float32,"({",".join(["999999999999999999"] * 5000)})",1,1'),
    "times without end": _rows(f"Add,Default_Add-op1,{'9' * 4000},0,{'9' * 4000},output,0,4,float32,(1),1,1"),
    "a dtype that is a module": _rows(f"{_ADD},output,0,4,_dynamo,(1),1,1"),
    "an array that claims too much": _file(".npy", _claims((1 << 40,))),
    "an array that claims all": _file(".npy", _claims((1 << 62, 1 << 62))),
    "an array with a hole": _file(".npy", _hole),
    "an array that is a link": _file(".npy", _link),
    "a table that is a link": _file(".csv", _link),
    "a folder that is a link": _linked_folder,
}
_MSPROBE: dict[str, Harm] = {
    "a size without end": _entries(lambda: _call(shape=[1e400])),
    "sizes without end": _entries(lambda: _call(shape=[10**18] * 20_000)),
    "a size that is no whole number": _entries(lambda: _call(shape=[2.5])),
    "a dtype that is a module": _entries(lambda: _call(dtype="torch._dynamo")),
    "a dtype that is a function": _entries(lambda: _call(dtype="torch.add")),
    "a statistic without end": _entries(lambda: _call(Max=10**4000)),
    "lists in each other": _entries(lambda: {"Torch.add.0.forward": {"output": [_nested(400)]}}),
    "calls in each other": _entries(
        lambda: {f"Torch.add.{n}.forward": f"Torch.add.{n - 1}.forward" for n in range(MANY, 0, -1)}, "construct.json"
    ),
    "calls in a circle": _entries(
        lambda: {f"Torch.add.{n}.forward": f"Torch.add.{(n + 1) % MANY}.forward" for n in range(MANY)}, "construct.json"
    ),
    "a parent that is a list": _entries(lambda: {"Torch.add.0.forward": ["x"]}, "construct.json"),
    "no name": _entries(lambda: {"": {"input_args": []}}),
    "text that is half a character": _entries(lambda: _call(dtype="\ud800") | {"Torch.\ud800.0.forward": {}}),
    "a file elsewhere": _entries(lambda: _call(data_name="../../../kept.txt")),
    "a file with no name": _entries(lambda: _call(data_name="\0" * 300)),
    "a file that makes memory": _file(".pt", _bomb),
    "a file that is packed": _file(".pt", _packed),
    "a file that is expanded": _file(".pt", _expanded),
    "a file with a hole": _file(".json", lambda path: os.truncate(_written(path), 1 << 40)),
    "a file that is a link": _file(".pt", _link),
    "a table that is a link": _file(".json", _link),
    "a table that is a FIFO": _file(".json", lambda path: os.mkfifo(path)),
    "a folder that is a link": _linked_folder,
}


def _wide(dump: Path) -> None:
    """Columns and rows that are many each: a row of one cell is not filled up to the heading."""
    folder = next(path.parent for path in sorted(dump.rglob("*.npy")))
    heading = "IO,Slot,Op Type,Op Name,Task ID,Stream ID,Timestamp,Data Type,Shape," + ",".join(map(str, range(MANY)))
    rows = [f"output,0,Add,Add-op{n},0,0,{n},float32,(1)" for n in range(MANY // 4)]
    (folder / "statistic.csv").write_text("\n".join([heading, *rows]))


def _nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


def _written(path: Path) -> Path:
    path.write_text("{")
    return path


FOREIGN_HARMS: dict[str, tuple[Path, Harm]] = {
    **{f"MindSpore: {name}": (MINDSPORE, harm) for name, harm in _MINDSPORE.items()},
    **{f"msprobe: {name}": (MSPROBE / "L0-tensor", harm) for name, harm in _MSPROBE.items()},
}


def spoiled_foreign(dump: Path, original: Path, chance: random.Random) -> str:
    """Spoil the bytes of one file or the fields of one table of a dump."""
    if original == MINDSPORE:
        _add_statistics(dump)
    change = chance.choice((corrupted, spoiled_fields, spoiled_fields))
    return change(dump, chance)


def _add_statistics(dump: Path) -> None:
    """Write the table of statistics that MindSpore writes beside its files."""
    for folder in {path.parent for path in dump.rglob("*.npy")}:
        rows = [
            ["Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Type", "Shape", "Count"]
        ]
        for path in sorted(folder.glob("*.npy")):
            *facts, _, dtype, _ = path.name.split(".")
            rows.append([*facts, dtype, "(" + ",".join(map(str, np.load(path).shape)) + ")", "1"])
        with (folder / "statistic.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)


ORIGINALS = [MINDSPORE, *sorted(path for path in MSPROBE.iterdir() if path.is_dir())]
