"""Examples in docstrings do what they say, and each object of the API's page has one."""

from __future__ import annotations

import ast
import contextlib
import doctest
import functools
import importlib
import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import aten_dump
from aten_dump import DumpConfig, DumpMode
from tests.checkout import ROOT
from tests.structure import PACKAGE, files, module_of

SLOW = "aten_dump.integrations"  # the import of a trainer's library takes seconds
MODULES = [
    pytest.param(module, marks=pytest.mark.slow if module.startswith(SLOW) else ())
    for file in files(PACKAGE)
    if (module := module_of(file, PACKAGE)) and ">>>" in file.read_text(encoding="utf-8")
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def forward(self, batch: Tensor) -> Tensor:
        return self.mlp(batch)


class Net(nn.Module):
    """A model that returns its loss."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.block, self.norm = Block(), nn.LayerNorm(4, eps=eps)

    def forward(self, batch: Tensor) -> Tensor:
        return self.norm(self.block(batch)).sigmoid().mean()


def trained(path: Path, eps: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Record two steps of a model, all of them."""
    torch.manual_seed(0)
    model, batch = Net(eps), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DumpMode(DumpConfig(path, data="full"), model=model) as dump:
        for _ in range(2):
            optimizer.zero_grad()
            dump.save("loss", loss := model(batch))
            loss.backward()
            optimizer.step()
            dump.step()
    return model, optimizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the dumps and weights that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    weights = {
        name: tensor.detach().clone() for name, tensor in trained(folder / "baseline", 1e-5)[0].named_parameters()
    }
    trained(folder / "dump", 1e-2)
    (folder / "original").mkdir()
    for name in ("original/model.safetensors", "ported.safetensors"):
        save_file(weights, folder / name)
    return folder


def names() -> dict[str, Any]:
    """Return what examples take for granted."""
    model = Net(1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, q = torch.randn(3, 4), torch.randn(2, 4)

    def train_step(batch: Tensor) -> None:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()

    return {
        **{name: getattr(aten_dump, name) for name in aten_dump.__all__},
        "torch": torch, "model": model, "optimizer": optimizer, "batch": batch, "loader": [batch],
        "train_step": train_step, "train": lambda *given: train_step(batch), "q": q, "k": q, "v": q,
    }  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_print_what_they_say(
    module: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docstrings = [found for found in doctest.DocTestFinder().find(importlib.import_module(module)) if found.examples]
    assert docstrings
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for place, docstring in enumerate(docstrings):
        folder = tmp_path / str(place)
        records = "DumpConfig(path=" in docstring.docstring
        folder.mkdir() if records else shutil.copytree(made, folder)
        monkeypatch.chdir(folder)
        with contextlib.nullcontext() if records else DumpMode(DumpConfig("open")) as dump:
            docstring.globs |= names() | {"dump": dump}
            runner.run(docstring)
    assert runner.failures == 0, capsys.readouterr().out


def docstring_of(path: str) -> str:
    """Return the docstring of a module, or of a class or function in it."""
    file = ROOT.joinpath(*path.split(".")).with_suffix(".py")
    if ROOT.joinpath(*path.split(".")).is_dir():
        file = ROOT.joinpath(*path.split("."), "__init__.py")
    if file.is_file():
        return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    module, _, name = path.rpartition(".")
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    (node,) = (node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name)
    return ast.get_docstring(node) or ""


def test_each_object_of_the_page_of_the_api_has_an_example() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    objects = re.findall(r"^::: (aten_dump\.\S+)$", page, re.MULTILINE)
    assert len(objects) > 20
    assert [path for path in objects if ">>> " not in docstring_of(path)] == [
        "aten_dump.errors"
    ]  # its classes have them


def test_each_public_name_says_what_it_takes_returns_and_raises_with_an_example() -> None:
    public = {name: getattr(aten_dump, name) for name in aten_dump.__all__ if name != "IS_COMPILED"}
    assert [name for name, item in public.items() if ">>> " not in (item.__doc__ or "")] == []
    functions = {name: inspect.getdoc(item) or "" for name, item in public.items() if inspect.isfunction(item)}
    for name, text in functions.items():
        takes = inspect.signature(public[name]).parameters
        assert "Raises:" in text and ("Args:" in text or not takes), name
        assert [one for one in takes if f"    {one}: " not in text] == [], name
        assert "Returns:" in text or name == "stop_all", name
    for name, item in public.items():
        if inspect.isclass(item):
            members = {
                k: getattr(v, "func", v) for k, v in vars(item).items() if k[0] != "_" and (callable(v) or is_read(v))
            }
            assert [f"{name}.{k}" for k, v in members.items() if not v.__doc__] == []


def is_read(item: object) -> bool:
    return isinstance(item, (property, functools.cached_property, classmethod, staticmethod))
