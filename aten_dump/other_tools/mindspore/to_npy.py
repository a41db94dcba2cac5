"""``--to npy``: the layout and names of MindSpore's dump.

``rank_<R>/<net>/0/<step>/`` holds ``{op type}.{op
name}.{task}.{stream}.{time}.{input|output}.{slot}.DefaultFormat.{dtype}.npy``, statistic.csv with a row for each of
them, and mapping.csv for names that are too long for a file; ``rank_<R>/execution_order/`` the order in which calls
ran. The op name is the call's name with the module in front and ``-`` instead of dots, task the call's id, stream the
thread. Inputs and outputs are numbered through, lists and keywords included; what a call wrote in place are further
outputs. bfloat16 and other dtypes that numpy lacks are stored as float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from ...config import NET_NAME
from ...dump import Call, RankDump, Value
from ...export.chosen_calls import ChosenCalls
from ...export.values.arrays import as_array
from ...export.values.linked_files import TensorFiles
from ...export.values.numbers_of_values import StatisticsOf
from ...plain_text import CsvRows
from .table_names import COLUMNS, HEADING

NET: Final = "Net"
_FACTS: Final = (
    "Op Type",
    "Op Name",
    "Task ID",
    "Stream ID",
    "Timestamp",
    "IO",
    "Slot",
    "Data Size",
    "Data Type",
    "Shape",
)


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write a folder for each step and rank."""
    orders: dict[int, list[int]] = {}
    for rank in chosen.each_rank():
        orders.setdefault(rank.rank, []).append(rank.step)
        order = out / f"rank_{rank.rank}" / "execution_order"
        order.mkdir(parents=True, exist_ok=True)
        folder = out / f"rank_{rank.rank}" / _net(rank) / "0" / str(rank.step)
        folder.mkdir(parents=True)
        with (
            open(folder / "statistic.csv", "w", encoding="utf-8", newline="") as table,
            open(order / "ms_execution_order_graph_0.csv", "w", encoding="utf-8", newline="") as names,
        ):
            _write_rank(chosen, rank, folder, table, names)
    for number, steps in orders.items():
        lines = "".join(f"{step}\n" for step in steps)
        (out / f"rank_{number}" / "execution_order" / "ms_global_execution_order_graph_0.csv").write_text(lines)


def _write_rank(chosen: ChosenCalls, rank: RankDump, folder: Path, table: TextIO, names: TextIO) -> None:
    files = TensorFiles(folder, ".npy", _save)
    statistics = StatisticsOf(COLUMNS.values())
    rows, order = CsvRows(table), CsvRows(names)
    order.write([HEADING])
    algorithm = str(rank.config.get("hash", "hash")).upper()
    rows.write([*_FACTS, *COLUMNS, algorithm])
    for call in chosen.calls(rank):
        order.write([full_name(call)])
        outputs = [*call.output_values(), *call.written_values()]
        for io, values in (("input", call.input_values()), ("output", outputs)):
            for slot, value in numbered(values):
                if value.undefined:
                    chosen.leave_out("tensors that are undefined memory")
                    continue
                numbers = statistics(value)
                rows.write(
                    [*_facts(call, io, slot, value), *(numbers.get(name, "") for name in COLUMNS.values()), value.hash]
                )
                if value.has_data and not value.opaque:
                    for _ in chosen.tensors([(io, value)]):
                        files.put(_file_name(call, io, slot, value), value)
    files.close()


def _net(rank: RankDump) -> str:
    """Return the name of the network; what a dump of a stranger has instead leads nowhere."""
    found = rank.config.get("net_name")
    return found if isinstance(found, str) and NET_NAME.fullmatch(found) else NET


def numbered(values: Sequence[tuple[str, Value]]) -> Iterator[tuple[int, Value]]:
    """Yield values with numbers: the place of an argument or result; all else comes behind."""
    places = [slot.partition(".")[2] for slot, _ in values]
    following = max((int(place) for place in places if place.isdecimal()), default=-1)
    for (slot, value), place in zip(values, places, strict=True):
        if place.isdecimal() and not slot.startswith("mutated"):
            yield int(place), value
        else:
            following += 1
            yield following, value


def full_name(call: Call) -> str:
    """Return the name of a call with the modules that it ran in, as MindSpore's execution order has it."""
    scope = f"Default/{call.module.replace('.', '/')}" if call.module else "Default"
    return f"{scope}/{call.name.replace('.', '-').replace('/', '_')}"


def dtype_in_mindspore(name: str) -> str:
    """Return MindSpore's name of a dtype: ``Float32``, ``BFloat16``, ``UInt8``."""
    for start, theirs in (("bf", "BF"), ("ui", "UI")):
        if name.startswith(start):
            return theirs + name[2:]
    return name.capitalize()


def _identity(call: Call) -> tuple[str, str, str, str, str]:
    op = call.op.partition("::")[2] if call.kind == "aten" else call.api.partition(".")[2]
    op_type = op.replace(".", "-").replace("/", "_")
    name = full_name(call).replace("/", "_").replace(".", "-")
    return op_type, name, str(call.id), str(call.thread), str(call.start_ns // 1000)


def _file_name(call: Call, io: str, slot: int, value: Value) -> str:
    return ".".join((*_identity(call), io, str(slot), "DefaultFormat", dtype_in_mindspore(value.dtype_name)))


def _facts(call: Call, io: str, slot: int, value: Value) -> list[Any]:
    shape = f"({','.join(map(str, value.shape))})"
    return [*_identity(call), io, slot, value.nbytes, dtype_in_mindspore(value.dtype_name), shape]


def _save(value: Value, path: Path) -> None:
    blocks = value.blocks()
    index, first = next(blocks)
    array = as_array(first)
    if not index:
        np.save(path, array, allow_pickle=False)
        return
    head = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": tuple(value.shape)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, head)
        for _, block in chain([(index, first)], blocks):
            file.write(np.ascontiguousarray(as_array(block)).data)
