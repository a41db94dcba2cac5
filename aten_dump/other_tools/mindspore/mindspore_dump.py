"""Dumps of MindSpore: ``rank_<R>/<net>/<graph>/<iteration>/`` with .npy files, statistic.csv and mapping.csv.

An op's name carries where it ran, ``Default/network-WithLossCell/conv1-Conv2d/Conv2D-op0``, with ``_`` instead of
``/`` in file names; the execution order beside it has the slashes and the order. Ops whose scope begins with
``Gradients`` are of the backward pass. An op becomes ``MindSpore.<type>.<n>.<phase>``. Of what our own ``aten-dump
export --to npy`` wrote, calls have the names that they had.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...dump.foreign.formats import Reader
from ...dump.foreign.made_index import MadeCall, MadeIndex, MadeTensor
from ...dump.foreign.tensor_files import is_folder, loader, open_table
from ...errors import FormatError
from ...store import records
from .table_names import COLUMNS, HEADING

_FILE: Final = re.compile(
    r"(?P<type>[^.]+)\.(?P<name>.+)\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d+)\.(?P<io>input|output)\.(?P<slot>\d+)"
    r"\.(?P<format>\w+?)(?:\.(?P<dtype>[A-Za-z]+\d*))?\.npy"
)
_RANK: Final = re.compile(r"rank_([0-9]{1,18})")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")  # of an iteration
_OUR_PREFIX: Final = re.compile(r"_(Aten|Custom|Distributed|Functional|Module|NPU|Node|Tensor|Torch|VF)-")
_KINDS: Final = {"Aten": "aten", "Node": "node", "Module": "module", "Custom": "aten"}
_STATISTICS: Final = {ours: theirs.lower() for theirs, ours in COLUMNS.items()}
_COUNTS: Final = frozenset(("count", "negative", "positive", "nan", "neginf", "posinf", "zero"))
_IDENTITY: Final = ("op type", "op name", "task id", "stream id", "timestamp")
_COLUMNS: Final = frozenset((*_IDENTITY, "io", "slot", "data type", "shape", "md5", "md5 value", *_STATISTICS.values()))
_MOST_ABSENT: Final = 1024  # slots of an op below one that has a tensor: what each costs is bounded by its row
_TABLE: Final = "statistic.csv"

Key = tuple[str, str, int, int, int]  # type, name, task, stream, how often it ran before


@dataclass(slots=True)
class _Op:
    """One run of an op: what its files and its rows of statistics say, by (input or output, slot)."""

    files: dict[tuple[str, int], str] = field(default_factory=dict)
    dtypes: dict[tuple[str, int], str] = field(default_factory=dict)
    rows: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)
    time: int = 0  # of its first tensor, in microseconds


def find(root: Path) -> dict[int, dict[int, Path]]:
    """Return the directories of iterations, by iteration and rank."""
    found: dict[int, dict[int, Path]] = {}
    own = _RANK.fullmatch(root.name)
    ranks = (
        {int(own[1]): root}
        if own
        else {int(m[1]): path for path in root.iterdir() if (m := _RANK.fullmatch(path.name)) and is_folder(path)}
    )
    for rank, folder in ranks.items():
        for path in _folders(_folders(_folders([folder]))):
            if _NUMBER.fullmatch(path.name) and _holds_tensors(path):
                found.setdefault(int(path.name), {}).setdefault(rank, path)
    if not found and _holds_tensors(root):
        return {int(root.name) if _NUMBER.fullmatch(root.name) else 0: {0: root}}
    return found


def _folders(outer: Iterable[Path]) -> list[Path]:
    return [path for folder in outer for path in sorted(folder.iterdir()) if is_folder(path)]


def _holds_tensors(path: Path) -> bool:
    if (path / _TABLE).is_file():
        return True
    long_names = dict(_mapping(path))
    return any(_FILE.fullmatch(long_names.get(file.name, file.name)) for file in path.glob("*.npy"))


def read(directory: Path, step: int, rank: int, world_size: int) -> MadeIndex:
    """Read the files of one iteration of all graphs of its net."""
    folders = [directory]
    if _RANK.fullmatch(directory.parent.parent.parent.name):
        graphs = _folders(_folders([directory.parent.parent.parent]))
        folders = [folder for graph in graphs if is_folder(folder := graph / directory.name)]
    ops: dict[tuple[Path, Key], _Op] = {}
    for folder in folders:
        for key, op in _ops_of(folder).items():
            ops[folder, key] = op
    order = _Order(directory)
    has_files = any(op.files for op in ops.values())
    data = "full" if has_files and any(op.rows for op in ops.values()) else "tensor" if has_files else "statistic"
    config = {"data": data, "level": "aten", "statistics": list(_STATISTICS), "hash": "md5", "source": "MindSpore"}
    made = MadeIndex(directory, step, rank, world_size, config)
    counter: Counter[str] = Counter()
    ids: dict[str, int] = {}
    start = min((op.time for op in ops.values()), default=0)
    for (folder, key), op in sorted(ops.items(), key=lambda item: (order.place(item[0][1][1]), item[1].time, item[0])):
        facts = _facts(key, order.full_name(key[1]), counter, (op.time - start) * 1000)
        name = f"{facts.prefix}.{facts.api}.{facts.n}"
        forward = ids.get(name, 0) if facts.phase == "backward" else 0
        number = made.call(facts, forward=forward, **_trees(made, folder, op))
        ids.setdefault(name, number)
    return made


class _Ops:
    """The runs of ops in one folder. Each tensor has a time of its own; what comes twice is of the next run."""

    def __init__(self) -> None:
        self.found: dict[Key, _Op] = {}
        self._seen: Counter[tuple[Any, ...]] = Counter()  # how often a slot of an op had a file, or a row

    def of(self, facts: Sequence[str], slot: tuple[str, int], part: str) -> _Op:
        """Return the run that a file or a row (`part`) of a slot belongs to."""
        op_type, name, task, stream, time = facts
        run = (op_type, name, int(task), int(stream))
        again = self._seen[run, slot, part]
        self._seen[run, slot, part] += 1
        return self.found.setdefault((*run, again), _Op(time=int(time)))


def _ops_of(folder: Path) -> dict[Key, _Op]:
    ops = _Ops()
    long_names = dict(_mapping(folder))
    matches = [(path, _FILE.fullmatch(long_names.get(path.name, path.name))) for path in folder.glob("*.npy")]
    known = [(path, match) for path, match in matches if match is not None]
    for path, match in sorted(known, key=lambda pair: (int(pair[1]["time"]), pair[0].name)):
        slot = (match["io"], int(match["slot"]))
        op = ops.of(match.group("type", "name", "task", "stream", "time"), slot, "files")
        op.files[slot] = path.name
        if match["dtype"]:
            op.dtypes[slot] = match["dtype"].lower()
    if (folder / _TABLE).is_file():
        for cells in _rows(folder / _TABLE):
            slot = (cells["io"].lower(), int(cells["slot"]))
            ops.of([cells[name] for name in _IDENTITY], slot, "rows").rows[slot] = cells
    return ops.found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the cells of each row, by the name of the column; only of columns that are read here."""
    with open_table(path) as file:
        rows = (row for row in csv.reader(file) if row)
        names = [name.strip().lower() for name in next(rows, [])]
        places = {name: place for place, name in enumerate(names) if name in _COLUMNS}
        for row in rows:
            yield {name: row[place] for name, place in places.items() if place < len(row)}


def _mapping(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (file, name) of names that were too long for a file."""
    if (folder / "mapping.csv").is_file():
        with open_table(folder / "mapping.csv") as file:
            for row in csv.reader(file):
                if len(row) == 2:
                    suffix = "" if row[1].endswith(".npy") else ".npy"
                    yield row[0], row[1] + suffix


class _Order:
    """The execution order: names with their scopes, as they ran."""

    def __init__(self, directory: Path) -> None:
        folder = directory.parent.parent.parent / "execution_order"
        self._names: dict[str, tuple[int, str]] = {}
        for path in sorted(folder.glob("ms_execution_order_graph_*.csv")):
            with open_table(path) as file:
                names = [row[0].strip() if row else "" for row in csv.reader(file)]
            for name in names:
                if name != HEADING:
                    self._names.setdefault(name.replace("/", "_").replace(".", "-"), (len(self._names), name))

    def place(self, name: str) -> int:
        """Return where in the order an op is; behind all others where it is not known."""
        return self._names.get(name, (len(self._names), ""))[0]

    def full_name(self, name: str) -> str:
        """Return a name with slashes; as it is in the file's name where the order is not known."""
        return self._names.get(name, (0, name))[1]


def _facts(key: Key, full_name: str, counter: Counter[str], start_ns: int) -> MadeCall:
    op_type, name, _, stream, _ = key
    scope = full_name.split("/")[:-1]
    ours = _our_name(name)
    if ours is not None:
        module = ".".join(scope[1:])
        prefix, api, n, phase = ours
        kind = _KINDS.get(prefix, "api")
        text = f"aten::{op_type.replace('-', '.', 1)}" if prefix == "Aten" else api if prefix == "Node" else op_type
        return MadeCall(kind, text, prefix, api.replace("-", "."), int(n), phase, module, stream, start_ns)
    is_optimizer = any(part.startswith("optimizer") for part in scope)
    phase = "backward" if full_name.startswith("Gradients") else "optimizer" if is_optimizer else "forward"
    module = ".".join(part.partition("-")[0] for part in scope if part not in ("Default", "Gradients"))
    counter[op_type] += 1
    return MadeCall(
        "aten", f"mindspore::{op_type}", "MindSpore", op_type, counter[op_type] - 1, phase, module, stream, start_ns
    )


def _our_name(name: str) -> tuple[str, str, str, str] | None:
    """Return prefix, api, number and phase of a call's name as aten_dump exports it, modules before it; else None.

    The name is parsed from both ends: a pattern of the whole would try every beginning with every end.
    """
    head, *end = name.rsplit("-", 2)
    begin = _OUR_PREFIX.search(head)
    if len(end) != 2 or not end[0].isdecimal() or end[1] not in records.PHASES or begin is None:
        return None
    api = head[begin.end() :]
    return (begin[1], api, end[0], end[1]) if api else None


def _trees(made: MadeIndex, folder: Path, op: _Op) -> dict[str, Any]:
    found: dict[str, dict[int, Any]] = {"input": {}, "output": {}}
    for slot in sorted({*op.files, *op.rows}):
        facts = _tensor(folder, op, slot)
        if slot[0] not in found or not 0 <= slot[1] < len(found[slot[0]]) + _MOST_ABSENT:
            raise FormatError(
                f"{folder} has {slot[0]!r:.20} {slot[1]} of an op with few: input or output 0, 1, ... is expected"
            )
        found[slot[0]][slot[1]] = None if facts is None else made.tensor(facts)
    inputs, outputs = ([items.get(n) for n in range(max(items, default=-1) + 1)] for items in found.values())
    return {"args": inputs, "outputs": outputs[0] if len(outputs) == 1 else [records.TREE_TUPLE, *outputs]}


def _tensor(folder: Path, op: _Op, slot: tuple[str, int]) -> MadeTensor | None:
    row, name = op.rows.get(slot), op.files.get(slot)
    load = None if name is None else loader(folder, name)
    if row is not None:
        dtype = row["data type"].lower()
        sizes = re.findall(r"\d+", row["shape"])
        numbers = {ours: _number(ours, row.get(theirs)) for ours, theirs in _STATISTICS.items()}
        digest = row.get("md5") or row.get("md5 value") or ""
        return MadeTensor(dtype, tuple(map(int, sizes)), numbers, bytes.fromhex(digest) if digest else None, load=load)
    if load is None:
        return None
    tensor = load()  # without statistics, only the file knows the shape
    return MadeTensor(op.dtypes.get(slot, str(tensor.dtype).removeprefix("torch.")), tuple(tensor.shape), load=load)


def _number(name: str, cell: str | None) -> float | int | None:
    if not cell or cell == "null":
        return None
    number = float(cell)
    if name not in _COUNTS:
        return number
    if not math.isfinite(number):
        raise FormatError(f"a table has the count {cell!r:.40}; a whole number is expected")
    return int(number)


READER: Final = Reader(find, read, "rank_*/<net>/<graph>/<iteration>")
