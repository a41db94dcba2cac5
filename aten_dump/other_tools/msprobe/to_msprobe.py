"""``--to msprobe``: what msprobe writes, for its ``compare`` and ``graph_visualize``.

``step<S>/rank<R>/`` holds dump.json (arguments and results of each call), stack.json (which calls have which source
stack), construct.json (which call ran in which) and dump_tensor_data/<call>.<slot>.pt. msprobe knows no recomputed
calls and no phase of the optimizer: both are ``forward`` there, and calls under the optimizer have the parent
``optimizer``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import torch

from ...dump import Call, GeneratorRef, ObjectRef, RankDump, ReprRef, Value
from ...export.chosen_calls import ChosenCalls
from ...export.formats.to_torch import save_pt
from ...export.values.linked_files import TensorFiles
from ...export.values.numbers_of_values import StatisticsOf

_STATISTICS: Final = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "l2norm"}
_LEVELS: Final[dict[tuple[str, ...], str]] = {("module",): "L0", ("api",): "L1"}
OPTIMIZER: Final = "optimizer"


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write a folder for each step and rank."""
    for rank in chosen.each_rank():
        folder = out / f"step{rank.step}" / f"rank{rank.rank}"
        folder.mkdir(parents=True)
        _RankFiles(chosen, rank, folder).write()


def name_in_msprobe(call: Call) -> str:
    """Return msprobe's name of a call: ``Module.fc.Linear.forward.0``, ``Functional.linear.0.forward``."""
    phase = "backward" if call.phase == "backward" else "forward"
    if call.kind == "module":
        return f"{call.api}.{call.op.rpartition('.')[2]}.{phase}.{call.n}"
    return f"{call.api}.{call.n}.{phase}"


class _RankFiles:
    """The files of one step and rank; dump.json is written call by call."""

    def __init__(self, chosen: ChosenCalls, rank: RankDump, folder: Path) -> None:
        self._chosen = chosen
        self._rank = rank
        self._folder = folder
        self._task = _task_of(rank)
        self._files = TensorFiles(folder / "dump_tensor_data", ".pt", save_pt) if self._task == "tensor" else None
        self._statistics = StatisticsOf(_STATISTICS.values())
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[int, list[str]] = {}

    def write(self) -> None:
        with open(self._folder / "dump.json", "w", encoding="utf-8") as file:
            head = {
                "task": self._task,
                "level": _LEVELS.get(tuple(self._chosen.kinds), "mix"),
                "framework": "pytorch",
                "recorder": "aten_dump",  # backward calls have gradients in the order of the arguments
                "dump_data_dir": "dump_tensor_data" if self._files else None,
            }
            file.write(json.dumps(head)[:-1] + ', "data": {')
            self._write_calls(file)
            file.write("\n}}\n")
        parents = {name: parent if parent in self._parents else None for name, parent in self._parents.items()}
        self._write("construct.json", parents)
        self._write(
            "stack.json", {str(n): [names, self._frames(id)] for n, (id, names) in enumerate(self._stacks.items())}
        )
        if self._files is not None:
            self._files.close()

    def _write(self, name: str, content: dict[str, Any]) -> None:
        (self._folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")

    def _write_calls(self, file: TextIO) -> None:
        separator = "\n"
        for call in self._chosen.calls(self._rank):
            if call.repeat:
                self._chosen.leave_out("further backwards of one call, for which msprobe has no name")
                continue
            name = name_in_msprobe(call)
            self._note_place(name, call)
            if self._task == "structure":
                continue
            file.write(f"{separator}{json.dumps(name)}: {json.dumps(self._entry(name, call))}")
            separator = ",\n"
        for name, entry in self._parameter_gradients():
            file.write(f"{separator}{json.dumps(name)}: {json.dumps(entry)}")
            separator = ",\n"

    def _note_place(self, name: str, call: Call) -> None:
        if call.phase == "optimizer" and call.kind != "module":
            self._parents.setdefault(OPTIMIZER, None)
        self._parents[name] = _parent_name(call)
        self._stacks.setdefault(call.record.stack, []).append(name)

    def _entry(self, name: str, call: Call) -> dict[str, Any]:
        args, kwargs = call.inputs
        outputs = call.outputs if isinstance(call.outputs, list | tuple) else (call.outputs,)
        if call.phase == "backward":
            return {"input": self._items(args, f"{name}.input"), "output": self._items(outputs, f"{name}.output")}
        return {
            "input_args": self._items(args, f"{name}.input"),
            "input_kwargs": {key: self._item(item, f"{name}.input.{key}") for key, item in kwargs.items()},
            "output": self._items(outputs, f"{name}.output"),
        }

    def _items(self, items: Any, name: str) -> list[Any]:
        return [self._item(item, f"{name}.{number}") for number, item in enumerate(items)]

    def _item(self, item: Any, name: str) -> Any:
        if isinstance(item, Value):
            return self._tensor(item, name)
        if isinstance(item, list | tuple):
            return self._items(item, name)
        if isinstance(item, dict):
            return {key: self._item(inner, f"{name}.{key}") for key, inner in item.items()}
        return None if item is None else _literal(item)

    def _tensor(self, value: Value, name: str) -> dict[str, Any]:
        numbers = self._statistics(value)
        entry = {
            "type": "torch.Tensor",
            "dtype": f"torch.{value.dtype_name}",
            "shape": list(value.shape),
            **{theirs: numbers.get(ours) for theirs, ours in _STATISTICS.items()},
            "requires_grad": value.requires_grad,
        }
        if value.hash is not None and self._task != "tensor":
            entry["md5"] = value.hash
        if self._files is not None:
            for _ in self._chosen.tensors([(name, value)]):
                entry["data_name"] = self._files.put(name, value)
        return entry

    def _parameter_gradients(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the gradients of parameters, by the module that holds them."""
        if "module" not in self._chosen.kinds or self._task == "structure":
            return
        modules = {call.api: call for call in self._rank.calls.filter(kind="module")}
        found: dict[str, dict[str, Any]] = {}
        for path, value in self._rank.gradients.items():
            module, _, parameter = path.rpartition(".")
            call = modules.get(f"Module.{module}")
            if call is not None:
                name = f"{call.api}.{call.op.rpartition('.')[2]}.parameters_grad.0"
                found.setdefault(name, {})[parameter] = [self._tensor(value, f"{name}.{parameter}")]
        yield from found.items()

    def _frames(self, stack: int) -> list[str]:
        frames = self._rank.tables.stack(stack)
        return [f"File {frame.file}, line {frame.line}, in {frame.function}, \n " for frame in frames]


def _task_of(rank: RankDump) -> str:
    data = rank.config.get("data")
    if data in ("tensor", "full"):
        return "tensor"
    return "structure" if data == "structure" else "statistics"


def _parent_name(call: Call) -> str | None:
    """Return the call that msprobe would name as the one it ran in: of a backward, that of the outer call."""
    if call.phase == "optimizer":
        return OPTIMIZER
    origin = call.forward if call.phase == "backward" else call
    outer = None if origin is None else origin.parent
    while outer is not None and outer.kind not in ("module", "api"):
        outer = outer.parent
    if outer is None:
        return None
    name = name_in_msprobe(outer)
    if call.phase != "backward":
        return name
    if outer.kind == "module":
        return f"{outer.api}.{outer.op.rpartition('.')[2]}.backward.{outer.n}"
    return f"{outer.api}.{outer.n}.backward"


def _literal(item: Any) -> dict[str, Any]:
    if isinstance(item, bool | int | float | str):
        return {"type": type(item).__name__, "value": item}
    if isinstance(item, torch.dtype):
        return {"type": "torch.dtype", "value": str(item)}
    if isinstance(item, torch.device):
        return {"type": "torch.device", "value": str(item)}
    if isinstance(item, complex):
        return {"type": "complex", "value": str(item)}
    text = {ObjectRef: "type_name", ReprRef: "text", GeneratorRef: "device"}.get(type(item))
    return {"type": type(item).__name__, "value": str(getattr(item, text) if text else item)}
