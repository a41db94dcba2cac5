"""The layers import one way: cli → report, export, compat, analysis → dump → store ← capture.

Read from the source with ast, so that imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkout import ROOT

PACKAGE = ROOT / "aten_dump"
ROOT = PACKAGE.name

LEAVES = {"errors", "config"}
READER = LEAVES | {"dump", "store"}
# layer -> the layers it may import, beside itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "store": {"errors"},
    "capture": LEAVES | {"store"},
    "dump": LEAVES | {"store"},
    "analysis": READER,
    "report": READER | {"analysis"},
    "export": READER | {"analysis"},
    "compat": READER | {"analysis"},
    "cli": READER | {"analysis", "report", "export", "compat", ROOT},  # ROOT: the public API, __version__
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
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        found += [
            Reference(relative.as_posix(), node.lineno, name, imported)
            for node in ast.walk(tree)
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
