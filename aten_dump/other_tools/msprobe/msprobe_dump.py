"""Dumps of msprobe's PrecisionDebugger: dump.json or debug.json, stack.json, construct.json, dump_tensor_data/.

Names are msprobe's: ``Functional.linear.0.forward``, ``Module.fc.Linear.forward.0``, which here is
``Module.fc.0.forward``. What construct.json places under ``optimizer`` has that phase. A module's parameters are the
outputs of a call ``Parameters.fc.0.forward``, tensors of PrecisionDebugger.save those of ``Saved.<name>.<n>.forward``.
msprobe does not say which tensors are the same one, so each is a value of its own. Its backward of an API is that of
the API's last autograd node, whose gradients have the order of that node's edges, not of the API's arguments: they are
the outputs ``edge0``, ``edge1``, ..., which never pair with gradients of arguments. What ``aten-dump export`` wrote has
those.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from ...dump.foreign.formats import Reader
from ...dump.foreign.made_index import MadeCall, MadeIndex, MadeTensor
from ...dump.foreign.tensor_files import is_folder, loader, open_table
from ...errors import FormatError
from ...store import records

_STATISTICS: Final = {"max": "Max", "min": "Min", "mean": "Mean", "l2norm": "Norm"}
_OPTIMIZER: Final = "optimizer"
_TABLES: Final = ("dump.json", "debug.json")
_RANK: Final = re.compile(r"(?:rank|proc|device)_?([0-9]{0,18})")
_STEP: Final = re.compile(r"step([0-9]{1,18})")
_MODULE: Final = re.compile(r"(Module|Cell)\.(.+)\.([^.]+)\.(forward|backward)\.(\d+)")
_API: Final = re.compile(r"([A-Za-z]+)\.(.+)\.(\d+)\.(forward|backward)")
_GRADIENTS: Final = re.compile(r"(?:Module|Cell)\.(.+)\.[^.]+\.parameters_grad(?:\.\d+)?")
_SAVED: Final = re.compile(r"(.+?)(_grad)?\.(\d+)\.debug")
_FRAME: Final = re.compile(r"File (.+?), line (\d+), in (.+?),\s*(.*)", re.DOTALL)
# The functions that a prefix stands for, as our own ops name them, so that both can be aligned.
_OWNERS: Final = {
    "Functional": "torch.nn.functional",
    "Torch": "torch",
    "Tensor": "torch.Tensor",
    "VF": "torch._VF",
    "Distributed": "torch.distributed",
    "NPU": "torch_npu",
}
_OPERATORS: Final = {"truediv": "div", "floordiv": "floor_divide", "invert": "bitwise_not"}


def find(root: Path) -> dict[int, dict[int, Path]]:
    """Return the directories that hold msprobe's tables, by step and rank."""
    if _is_table_folder(root):
        step, rank = _STEP.fullmatch(root.parent.name), _RANK.fullmatch(root.name)
        return {int(step[1]) if step else 0: {int(rank[1]) if rank and rank[1] else 0: root}}
    found: dict[int, dict[int, Path]] = {}
    steps = {int(name[1]): path for path in root.iterdir() if (name := _STEP.fullmatch(path.name)) and is_folder(path)}
    own = _STEP.fullmatch(root.name)
    free: dict[int, Iterator[int]] = defaultdict(count)  # numbers for programs without ranks: `rank`, `proc<pid>`
    for number, folder in (steps or {int(own[1]) if own else 0: root}).items():
        for path in sorted(folder.iterdir()):
            match = _RANK.fullmatch(path.name)
            if match and is_folder(path) and _is_table_folder(path):
                ranks = found.setdefault(number, {})
                digits = match[1] if path.name.startswith(("rank", "device")) else ""
                ranks[int(digits) if digits else next(n for n in free[number] if n not in ranks)] = path
    return found


def _is_table_folder(path: Path) -> bool:
    return any((path / name).is_file() for name in _TABLES)


def read(directory: Path, step: int, rank: int, world_size: int) -> MadeIndex:
    """Read the tables of one directory."""
    return _Reader(directory, step, rank, world_size).read()


class _Reader:
    """Turns entries into calls, each after the one it ran in."""

    def __init__(self, directory: Path, step: int, rank: int, world_size: int) -> None:
        self._directory = directory
        self._tables = [_json(directory / name) for name in _TABLES if (directory / name).is_file()]
        self._parents: dict[str, str | None] = _json_or_none(directory / "construct.json")
        self._entries: dict[str, Any] = {name: entry for table in self._tables for name, entry in table["data"].items()}
        self._made = MadeIndex(directory, step, rank, world_size, self._config())
        self._in_optimizer: set[str] = set()
        self._is_ours = self._tables[0].get("recorder") == "aten_dump"
        self._stacks = dict(self._read_stacks())
        self._ids: dict[str, int] = {}
        self._modules: dict[str, str] = {}  # the innermost module that each entry ran in
        self._unread: list[str] = []

    def _config(self) -> dict[str, Any]:
        head = self._tables[0]
        task = head.get("task")
        data = "tensor" if task == "tensor" else "structure" if task == "structure" else "statistic"
        level = {"L0": "module", "L1": "api"}.get(str(head.get("level")), "mix")
        return {"data": data, "level": level, "statistics": list(_STATISTICS), "hash": "crc32", "source": "msprobe"}

    def _read_stacks(self) -> Iterator[tuple[str, int]]:
        """Yield names and their stacks; note what ran in an optimizer, as level L1 has no construct.json to say so."""
        for names, lines in _json_or_none(self._directory / "stack.json").values():
            frames = [frame for line in lines if (frame := _frame(line))]
            stack = self._made.stack(frames)
            if any("/torch/optim/" in file.replace("\\", "/") for file, *_ in frames):
                self._in_optimizer.update(names)
            for name in names:
                yield name, stack

    def read(self) -> MadeIndex:
        for name in [*self._entries, *(name for name in self._parents if name not in self._entries)]:
            self._place(name)
        if self._unread:
            some = ", ".join(self._unread[:5])
            self._made.note("unread", f"entries whose names are none of msprobe's: {some}", len(self._unread))
        return self._made

    def _place(self, name: str) -> int:
        """Add a call, after those it ran in, and return its id."""
        chain = {name: None}
        inner = name
        while (outer := self._parents.get(inner)) and outer not in self._ids and outer not in chain:
            chain[outer] = None
            inner = outer
        for one in reversed(chain):
            if one not in self._ids and one != _OPTIMIZER:
                self._add(one, self._entries.get(one) or {})
        return self._ids.get(name, 0)

    def _add(self, name: str, entry: Any) -> None:
        gradients, saved = _GRADIENTS.fullmatch(name), _SAVED.fullmatch(name)
        if gradients:
            for parameter, items in entry.items():
                for item in items if isinstance(items, list) else [items]:
                    if item is not None:
                        self._made.gradient(f"{gradients[1]}.{parameter}", self._made.tensor(self._tensor(item)))
            return
        if saved:
            phase = "backward" if saved[2] else "forward"
            facts = MadeCall("api", "PrecisionDebugger.save", "Saved", saved[1], int(saved[3]), phase)
            self._ids[name] = self._made.call(facts, outputs=self._tree(entry))
            return
        known = _call_facts(name, self._is_optimizer(name), self._module_of(name))
        if known is None:
            self._unread.append(name)
            return
        parent = self._ids.get(self._parents.get(name) or "", 0)
        is_backward = known.phase == "backward"
        forward = self._ids.get(_forward_name(name), 0) if is_backward else 0
        trees = self._trees(entry, is_backward and known.kind == "api")
        stack = self._stacks.get(name, 0)
        self._ids[name] = self._made.call(known, parent=parent, forward=forward, stack=stack, **trees)
        if entry.get("parameters"):
            facts = MadeCall(
                "api", f"parameters of {known.op}", "Parameters", known.api, known.n, known.phase, known.api
            )
            self._made.call(facts, parent=self._ids[name], outputs=self._tree(entry["parameters"]))

    def _is_optimizer(self, name: str) -> bool:
        return self._parents.get(name) == _OPTIMIZER or name in self._in_optimizer

    def _module_of(self, name: str) -> str:
        """Return the path of the innermost module that a call ran in; what it is for those outside is known once."""
        passed: list[str] = []
        outer: str | None = name
        found = ""
        while outer and outer not in self._modules:
            match = _MODULE.fullmatch(outer)
            self._modules[outer] = match[2] if match else ""  # also of a circle, and of what has none around it
            passed.append(outer)
            if match:
                break
            outer = self._parents.get(outer)
        found = self._modules.get(outer or name, "")
        self._modules.update(dict.fromkeys(passed, found))
        return found

    def _outputs(self, outputs: list[Any], is_node: bool) -> Any:
        trees = [self._tree(item) for item in outputs]
        if is_node and not self._is_ours:
            return [records.TREE_DICT, *(part for n, tree in enumerate(trees) for part in (f"edge{n}", tree))]
        return trees[0] if len(trees) == 1 else [records.TREE_TUPLE, *trees]

    def _trees(self, entry: Mapping[str, Any], is_node: bool) -> dict[str, Any]:
        given = entry.get("input_args", entry.get("input", []))
        args = [self._tree(item) for item in (given if isinstance(given, list) else [given])]
        kwargs = {key: self._tree(item) for key, item in (entry.get("input_kwargs") or {}).items()}
        outputs = entry.get("output", [])
        tree = self._outputs(outputs if isinstance(outputs, list) else [outputs], is_node)
        return {"args": args, "kwargs": kwargs or None, "outputs": tree}

    def _tree(self, item: Any) -> Any:
        if item is None:
            return None
        if isinstance(item, list):
            return [records.TREE_LIST, *map(self._tree, item)]
        if not isinstance(item, dict):
            raise FormatError(f"{self._directory} has an argument {item!r:.80}; null, a list or an object is expected")
        kind = item.get("type")
        if kind == "torch.Tensor" or kind == "mindspore.Tensor" or (isinstance(kind, str) and "shape" in item):
            return self._made.tensor(self._tensor(item))
        if not isinstance(kind, str):
            pairs = [part for key, inner in item.items() for part in (str(key), self._tree(inner))]
            return [records.TREE_DICT, *pairs]
        return _literal(kind, item.get("value"))

    def _shape(self, found: Any) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(size) is int for size in found):
            raise FormatError(f"{self._directory} has the shape {found!r:.80}; a list of whole numbers is expected")
        return tuple(found)

    def _tensor(self, item: Mapping[str, Any]) -> MadeTensor:
        name = item.get("data_name")
        folder = self._directory / "dump_tensor_data"
        has_file = isinstance(name, str) and (folder / Path(name).name).is_file()
        if isinstance(name, str) and not has_file:
            self._made.absent.append(name)
        checksum = item.get("md5")
        numbers = {ours: _number(item.get(theirs)) for ours, theirs in _STATISTICS.items()}
        return MadeTensor(
            str(item["dtype"]).rpartition(".")[2].lower(),
            self._shape(item["shape"]),
            numbers,
            bytes.fromhex(checksum.removeprefix("0x")) if isinstance(checksum, str) else None,
            bool(item.get("requires_grad")),
            loader(folder, name) if has_file and isinstance(name, str) else None,
        )


def _json(path: Path) -> dict[str, Any]:
    with open_table(path) as file:
        content = json.load(file)
    if not isinstance(content, dict):
        raise FormatError(f"{path} holds a JSON {type(content).__name__}; an object is expected")
    return content


def _json_or_none(path: Path) -> dict[str, Any]:
    return _json(path) if path.is_file() else {}


def _frame(line: str) -> tuple[str, int, str, bool] | None:
    match = _FRAME.match(line)
    if match is None:
        return None
    return (
        match[1],
        int(match[2]),
        match[3],
        not re.search(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python", match[1]),
    )


def _call_facts(name: str, is_optimizer: bool, module: str) -> MadeCall | None:
    """Return what a name says of a call; None of a name that is none of msprobe's."""
    match = _MODULE.fullmatch(name)
    if match:
        return MadeCall("module", match[3], "Module", match[2], int(match[5]), match[4], match[2])
    match = _API.fullmatch(name)
    if match is None:
        return None
    prefix, api, n, phase = match.groups()
    owner = _OWNERS.get(prefix, prefix)
    return MadeCall(
        "api", f"{owner}.{_method(api)}", prefix, api, int(n), _OPTIMIZER if is_optimizer else phase, module
    )


def _method(api: str) -> str:
    """Return the method that an operator stands for, by which our own calls go: ``__iadd__`` is ``add_``."""
    match = re.fullmatch(r"__(i?)(\w+?)__", api)
    if match is None or match[0] in ("__getitem__", "__setitem__", "__invert__"):
        return api
    in_place, name = (match[1], match[2]) if match[1] and match[2] in _IN_PLACE else ("", match[1] + match[2])
    return _OPERATORS.get(name, name) + ("_" if in_place else "")


_IN_PLACE: Final = frozenset(("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"))


def _forward_name(name: str) -> str:
    """Return the name of the forward call of a backward."""
    head, _, tail = name.rpartition("backward")
    return f"{head}forward{tail}"


def _number(item: Any) -> Any:
    return item if isinstance(item, int | float) and not isinstance(item, bool) else None


def _literal(kind: str, value: Any) -> Any:
    if kind in ("int", "float", "bool", "str") and isinstance(value, int | float | bool | str):
        return (
            value if not isinstance(value, int) or -(1 << 63) <= value < 1 << 64 else [records.TREE_BYTES, str(value)]
        )
    if kind == "torch.dtype":
        return [records.TREE_DTYPE, str(value).removeprefix("torch.")]
    if kind == "torch.device":
        return [records.TREE_DEVICE, str(value)]
    if isinstance(value, list) and kind in ("torch.Size", "list", "tuple"):
        return [records.TREE_LIST, *(one if isinstance(one, int) else str(one) for one in value)]
    if value is None:
        return [records.TREE_OBJECT, kind]
    return [records.TREE_BYTES, f"{kind}({value})"]


READER: Final = Reader(find, read, "step*/rank*/dump.json")
