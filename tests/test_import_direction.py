"""The layers import one way: cli → report, export, compat, analysis → dump → store ← capture; and so do rooms and files.

Read from the source with ast, so that imports inside functions and under TYPE_CHECKING count too. The size of functions
and classes is limited here too; `structure` says how it is measured. Files and folders have no limit: a file is as long
as its one concern.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import structure
from tests.checkout import ROOT

PACKAGE = ROOT / "aten_dump"
ROOT = PACKAGE.name

LEAVES = {
    "errors",
    "choices",
    "config",
    "geometry",
    "torch_names",
    "whole_files",
    "plain_text",
    "patterns",
    "yaml_text",
    "variables",
    "extensions",
}
READER = LEAVES | {"dump", "store"}
# layer -> the layers it may import, beside itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "choices": set(),
    "geometry": set(),
    "patterns": {"errors"},
    "plain_text": set(),
    "variables": {"plain_text"},
    "yaml_text": set(),
    "torch_names": set(),
    "whole_files": {"errors"},
    "extensions": {"errors"},
    "config_files": {"errors", "extensions", "yaml_text"},
    "config": {"errors", "config_files", "patterns", "whole_files"},
    "store": {"errors", "geometry", "whole_files"},
    "capture": LEAVES | {"store"},
    "dump": LEAVES | {"store"},
    "references": LEAVES,
    "analysis": READER | {"references"},
    "report": READER | {"analysis"},
    "export": READER | {"analysis"},
    "other_tools": READER
    | {"capture", "config_files", "export"},  # nothing imports it but what follows: see extensions
    "compat": {"other_tools"},
    "watch": LEAVES | {"capture"},
    "launch": LEAVES | {"capture", "watch"},
    "integrations": LEAVES | {"capture"},
    "testing": LEAVES | {"capture", "dump", "analysis"},
    "cli": READER
    | {"analysis", "config_files", "report", "export", "launch", ROOT},  # ROOT: the public API, __version__
}
FREE = {"__init__", "__main__"}  # the package's own front doors
DEVICE_PACKAGES = {"torch_npu", "torch.npu", "torch.cuda", "torch.xpu", "torch.mps"}
DEVICES_MODULE = "capture/devices.py"


@dataclass(frozen=True, slots=True)
class Reference:
    """A dotted name that a module imports or reaches, and where."""

    path: str
    line: int
    name: str
    imported: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


def references(package: Path) -> list[Reference]:
    found: list[Reference] = []
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package)
        found += [
            Reference(relative.as_posix(), node.lineno, name, imported)
            for node in structure.nodes_of(file)
            for name, imported in names_of(node, relative)
        ]
    return found


def names_of(node: ast.AST, relative: Path) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, is an import) of one node."""
    match node:
        case ast.Import(names):
            yield from ((alias.name, True) for alias in names)
        case ast.ImportFrom():
            base = absolute_base(node, relative)
            yield from ((f"{base}.{alias.name}", True) for alias in node.names)
        case ast.Call(func=ast.Name("__import__" | "import_module") | ast.Attribute(attr="import_module")):
            match node.args:
                case [ast.Constant(str(name)), *_]:
                    yield name, True
        case ast.Attribute(value=ast.Name(owner), attr=attr):
            yield f"{owner}.{attr}", False


def absolute_base(node: ast.ImportFrom, relative: Path) -> str:
    if node.level == 0:
        return node.module or ""
    folders = [ROOT, *relative.parent.parts]
    base = folders[: len(folders) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def layer_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def is_under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def target_layer(name: str) -> str:
    """Return the layer that `aten_dump.x.y` is in; ROOT for a name of aten_dump/__init__.py."""
    part = name.split(".")[1] if "." in name else ROOT
    return part if part in ALLOWED else ROOT


def wrong_edges(found: list[Reference]) -> list[str]:
    wrong = []
    for reference in found:
        layer = layer_of(reference.path)
        if not reference.imported or layer in FREE or not is_under(reference.name, ROOT):
            continue
        if target_layer(reference.name) not in ALLOWED.get(layer, set()) | {layer}:
            wrong.append(str(reference))
    return wrong


def torch_in_store(found: list[Reference]) -> list[str]:
    banned = ("torch", "safetensors.torch")
    return [
        str(reference)
        for reference in found
        if layer_of(reference.path) == "store"
        and reference.imported
        and any(is_under(reference.name, package) for package in banned)
    ]


def device_packages(found: list[Reference]) -> list[str]:
    return [
        str(reference)
        for reference in found
        if reference.path != DEVICES_MODULE and any(is_under(reference.name, package) for package in DEVICE_PACKAGES)
    ]


@pytest.fixture(scope="module")
def ours() -> list[Reference]:
    return references(PACKAGE)


def test_every_module_belongs_to_a_known_layer(ours: list[Reference]) -> None:
    layers = {layer_of(file.relative_to(PACKAGE).as_posix()) for file in PACKAGE.rglob("*.py")}
    assert layers <= set(ALLOWED) | FREE, (
        "a new top-level name: give it its place in ALLOWED and in docs/architecture.md"
    )
    assert {layer_of(reference.path) for reference in ours} >= {"store", "capture"}, "the reading itself found nothing"


def test_layers_import_one_way(ours: list[Reference]) -> None:
    assert wrong_edges(ours) == []


def test_store_does_not_need_torch(ours: list[Reference]) -> None:
    assert torch_in_store(ours) == []


def test_only_devices_names_a_device_package(ours: list[Reference]) -> None:
    assert device_packages(ours) == []


def test_allowed_edges_have_no_cycle() -> None:
    seen: list[str] = []
    for layer, below in ALLOWED.items():
        assert below - {ROOT} <= set(seen), f"{layer} may import a layer that is not below it"
        seen.append(layer)


GUILTY = {
    "store/index.py": ("from aten_dump.config import DumpConfig", wrong_edges),
    "store/shards.py": ("def f():\n    from ..capture.mode import DumpMode", wrong_edges),
    "store/deep/bytes.py": ("from ... import dump", wrong_edges),
    "capture/mode.py": ("import aten_dump.dump", wrong_edges),
    "capture/links.py": (
        "import importlib\nimportlib.import_module('aten_dump.analysis.pairing.alignment')",
        wrong_edges,
    ),
    "capture/api.py": ("from aten_dump import open_dump", wrong_edges),
    "dump.py": ("from .report import tree", wrong_edges),
    "dump/formats.py": ("from ..other_tools.msprobe import msprobe_dump", wrong_edges),
    "analysis/align.py": ("from ..cli import main", wrong_edges),
    "config.py": ("from .store import records", wrong_edges),
    "errors.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .config import DumpConfig",
        wrong_edges,
    ),
    "store/records.py": ("from torch import Tensor", torch_in_store),
    "store/reader.py": ("from safetensors import torch", torch_in_store),
    "capture/values.py": ("import torch_npu", device_packages),
    "capture/streams.py": ("from torch import cuda", device_packages),
    "capture/recorder.py": ("import torch\ntorch.npu.synchronize()", device_packages),
}

INNOCENT = {
    "__init__.py": "from .capture.mode import DumpMode\nfrom .dump import open_dump",
    "capture/devices.py": "import torch.cuda\nimport importlib\nimportlib.import_module('torch_npu')",
    "capture/sinks.py": "from ..store.sink import Sink\nfrom ..errors import CaptureError\nfrom . import devices",
    "cli/main.py": "from aten_dump import __version__\nfrom ..report import tree\nfrom ..dump import open_dump",
    "store/writer.py": "import numpy\nfrom ..errors import StoreError\nfrom .records import Header\nimport safetensors",
}


def write_tree(folder: Path, sources: dict[str, str]) -> Path:
    package = folder / ROOT
    for path, source in sources.items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
    return package


@pytest.mark.parametrize("path", GUILTY)
def test_a_wrong_import_is_found(path: str, tmp_path: Path) -> None:
    source, check = GUILTY[path]
    found = check(references(write_tree(tmp_path, {path: source})))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


def test_right_imports_are_let_through(tmp_path: Path) -> None:
    found = references(write_tree(tmp_path, INNOCENT))
    assert found
    assert wrong_edges(found) + torch_in_store(found) + device_packages(found) == []


# -- structure: circles, rooms, sizes. `python -m tests.structure` prints what is measured.

PARAMETERS = 5
# A user passes them by keyword, so many as there are options.
MANY_OPTIONS = {
    "analysis/compare.py:compare": "the public API",
    "analysis/compare_at.py:compare_at": "the public API",
    "analysis/replay.py:replay": "the public API",
    "analysis/replay.py:replay_all": "the public API",
    "export/job.py:export_dump": "the public API",
    "other_tools/msprobe/precision_debugger.py:__init__": "msprobe's parameters",
    "watch/run_watch.py:__init__": "the public API",
} | {
    f"capture/data/statistics/triton_kernel.py:{name}": "a Triton kernel: pointers, sizes, constants and all results"
    for name in (
        "_with",
        "_both",
        "_store",
        "_reduce_stretch",
        "_block",
        "reduce_one",
        "reduce_each",
        "reduce_rows",
        "put_together",
    )
}
CLICK_COMMANDS = "cli/commands/"  # an option each
# What is still to be mended. An entry that is mended is to be taken out: each must still be wrong.
TO_BE_MENDED = {
    "large class config.py:DumpConfig",
}


def has_many_parameters(function: structure.Function) -> bool:
    path, _, name = function.where.partition(":")
    is_command = path.startswith(CLICK_COMMANDS) and name == "command"
    return function.parameters > PARAMETERS and not is_command and function.where not in MANY_OPTIONS


def says_why_it_is_large(one: structure.Class) -> bool:
    return "more than fifteen" in one.docstring or "more than twenty" in one.docstring


def too_large(package: Path) -> set[str]:
    every = structure.functions(package)
    large = [one for one in structure.classes(package) if structure.is_large(one)]
    return {
        *(f"long function {function.where}" for function in every if function.lines > 50),
        *(f"many parameters {function.where}" for function in every if has_many_parameters(function)),
        *(f"large class {one.where}" for one in large if not says_why_it_is_large(one)),
    }


@pytest.fixture(scope="module")
def graph() -> structure.Graph:
    return structure.import_graph(PACKAGE)


def test_files_import_each_other_in_no_circle(graph: structure.Graph) -> None:
    assert len(graph) > 100, "the reading itself found nothing"
    assert structure.circles(graph) == []


def test_rooms_import_one_way(graph: structure.Graph) -> None:
    rooms = structure.room_graph(graph)
    assert structure.both_ways(rooms) == []
    assert structure.circles(rooms) == []


def test_nothing_is_too_large() -> None:
    found = too_large(PACKAGE)
    assert found - TO_BE_MENDED == set(), "make it smaller, or say why it is so large where this test looks for that"
    assert TO_BE_MENDED - found == set(), "these are mended: take them out of TO_BE_MENDED"


def test_circles_are_found_where_there_are_some(tmp_path: Path) -> None:
    sources = {
        "capture/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B",
        "capture/b.py": "def f():\n    from . import a",
        "dump/x/one.py": "from ..y import two",
        "dump/y/two.py": "from ..x import three",
        "dump/x/three.py": "",
    }
    graph = structure.import_graph(write_tree(tmp_path, sources))
    assert structure.circles(graph) == [["capture/a.py", "capture/b.py"]]
    rooms = structure.room_graph(graph)
    assert structure.both_ways(rooms) == [("capture/a.py", "capture/b.py"), ("dump/x", "dump/y")]


def test_what_is_too_large_is_found(tmp_path: Path) -> None:
    body = "".join(f"    x{i} = {i}\n" for i in range(50))
    fields = ", ".join(f"'f{i}'" for i in range(16))
    methods = "".join(f"    def m{i}(self): ...\n" for i in range(4))
    sources = {
        "dump/function.py": f"def f():\n{body}",
        "dump/parameters.py": "def f(a, b, c, *, d, e, f): ...",
        "dump/slots.py": f"class C:\n    __slots__ = ({fields})\n{methods}",
        "dump/reason.py": f"class C:\n    'It has more than fifteen.'\n    __slots__ = ({fields})\n{methods}",
        "dump/record.py": f"class C:\n    __slots__ = ({fields})",
        "cli/commands/show.py": "def command(a, b, c, d, e, f): ...",
    }
    assert too_large(write_tree(tmp_path, sources)) == {
        "long function dump/function.py:f",
        "many parameters dump/parameters.py:f",
        "large class dump/slots.py:C",
    }
