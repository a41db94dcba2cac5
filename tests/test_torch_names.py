"""Private names of torch are looked up in one place, with what is done without them; nothing else names any."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, torch_names
from aten_dump.store import records
from tests.structure import PACKAGE, files, nodes_of
from tests.torture.changing import records_of, signed

PLACES = ("capture/torch_internals/", "torch_names.py", "capture/devices.py")
# Attributes of torch's objects, read where the object is: a function around them would be one more frame for each op.
OF_OBJECTS = {
    "_cdata": "of a storage: its address",
    "_weak_ref": "of a storage",
    "_sequence_nr": "of an autograd node",
    "_is_zerotensor": "of a tensor",
    "_has_symbolic_sizes_strides": "of a tensor",
    "_forward_pre_hooks": "of a module",
    "_forward_pre_hooks_with_kwargs": "of a module",
    "_compiled_call_impl": "of a module",
    "_spec": "of a DTensor",
    "_local_tensor": "of a DTensor",
    "_has_method": "of an object of TorchScript",
}
NOT_OF_TORCH = {"_getframe", "_field_defaults"}  # of sys, of a NamedTuple
TEXTS = {"other_tools/msprobe/msprobe_dump.py": {"torch._VF"}}  # in which the name is data, and nothing is looked up
ASKED_OF_A_DEVICE = {"analysis/given_device.py"}  # whose names torch.device has found good
_DOTTED = re.compile(r"torch(\.\w+)+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported_as(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return what the names that a file imports from torch stand for."""
    found = {"torch": "torch"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "torch":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.asname: a.name for a in node.names if a.asname and a.name.startswith("torch")}
    return found


def names_of_torch(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of what a file names of torch: imported, reached by attributes, or written as text."""
    known = imported_as(nodes)
    for node in nodes:
        match node:
            case ast.Import(names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(str(module), names, 0):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.Constant(str(text)) if _DOTTED.fullmatch(text):
                yield node.lineno, text
            case ast.Attribute():
                owner: ast.AST = node
                while isinstance(owner, ast.Attribute):
                    owner = owner.value
                if isinstance(owner, ast.Name) and owner.id in known:
                    yield node.lineno, f"{known[owner.id]}.{ast.unparse(node).partition('.')[2]}"


def defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that a file gives to functions, classes and attributes."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(name, ast.Store()):
                yield name


def private_names(package: Path) -> list[str]:
    """Return where a module outside of `PLACES` names something private of torch, or of an object that is not ours."""
    nodes = {f.relative_to(package).as_posix(): nodes_of(f) for f in files(package)}
    ours = {name for some in nodes.values() for name in defined_names(some)} | NOT_OF_TORCH | set(OF_OBJECTS)
    found = set()
    for path, some in nodes.items():
        if path.startswith(PLACES):
            continue
        for line, name in names_of_torch(some):
            if name.startswith("torch.") and any(map(is_private, name.split("."))) and name not in TEXTS.get(path, ()):
                found.add(f"{path}:{line}: {name}")
        for node in some:
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours:
                found.add(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return sorted(found)


def test_nothing_else_names_what_is_private_in_torch() -> None:
    assert private_names(PACKAGE) == [], "look it up in capture/torch_internals, or in torch_names if others need it"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch\ndef f(): return torch._C._len_torch_dispatch_stack()", 2),
        ("from torch._C import _len_torch_dispatch_stack as depth", 1),
        ("from torch.nn.modules.module import _global_forward_pre_hooks", 1),
        ("from torch import nn as n\nn._reduction", 2),
        ("import sys\nsys.modules.get('torch.distributed._functional_collectives')", 2),
        ("def f(tensor): return tensor._base", 1),
        ("import torch\ntorch.UntypedStorage._expired(1)", 2),
        ("import torch\nclass A:\n    _own = 1\nA()._own, torch.add, torch.__version__, A().x._cdata", 0),
    ],
)
def test_a_private_name_is_found(source: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(source, encoding="utf-8")
    (tmp_path / "torch_names.py").write_text("import torch\ntorch._C", encoding="utf-8")
    assert {found.partition(": ")[0] for found in private_names(tmp_path)} == ({f"one.py:{line}"} if line else set())


def test_attributes_that_are_allowed_are_read() -> None:
    read = {n.attr for f in files(PACKAGE) for n in nodes_of(f) if isinstance(n, ast.Attribute)}
    assert set(OF_OBJECTS) - read == set(), "nothing reads these any more: take them out"


def test_views_that_say_how_elements_are_read() -> None:
    given = torch.tensor([1 + 2j, 3 - 4j])
    assert torch_names.conj_view(given).is_conj() and torch_names.conj_view(given).tolist() == [1 - 2j, 3 + 4j]
    assert torch_names.neg_view(given.real).is_neg() and torch_names.neg_view(given.real).tolist() == [-1, -3]


def test_what_the_registry_has() -> None:
    assert torch_names.has_kernel("aten::add.Tensor") and not torch_names.has_kernel("aten::no_such_op")
    assert torch_names.has_kernel_for("aten::mm", "CPU") and not torch_names.has_kernel_for("aten::mm", "MPS")


def test_a_weak_reference_to_a_storage() -> None:
    storage = torch.ones(3).untyped_storage()
    weak = storage._weak_ref()
    found = torch_names.referred_storage(weak)
    assert found is not None and found.data_ptr() == storage.data_ptr() and not torch_names.is_expired(weak)
    del storage, found
    assert torch_names.is_expired(weak)
    torch_names.free_weak_ref(weak)


def test_a_process_group_that_nobody_made() -> None:
    assert torch_names.process_group_named("no such group") is None


def test_no_text_of_a_dump_is_looked_up_in_torch_itself() -> None:
    """`torch._dynamo` imports the compiler: there are tables of dtypes, layouts and memory formats."""
    wrong = []
    for file in files(PACKAGE):
        path = file.relative_to(PACKAGE).as_posix()
        if path.startswith("capture/"):  # which reads no dump
            continue
        for node in nodes_of(file):
            match node:
                case ast.Call(ast.Name("getattr"), [ast.Name("torch"), ast.Constant(), *_]):
                    pass
                case ast.Call(ast.Name("getattr"), [ast.Name("torch"), *_]) if path not in ASKED_OF_A_DEVICE:
                    wrong.append(f"{path}:{node.lineno}")
    assert wrong == []


def test_a_dtype_that_is_a_module_is_not_imported(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(tmp_path / "dump", data="full")):
        torch.ones(3) * 2
    index = tmp_path / "dump" / "step0" / "rank0" / "index.msgpack"
    rows = records_of(index)
    for row in rows:
        if row[0] == records.TEXT and row[2] == "float32":
            row[2] = "_dynamo"
    index.write_bytes(signed(rows))
    script = """
import sys, aten_dump
from aten_dump.cli.main import main
before = "torch._dynamo" in sys.modules
value = aten_dump.open_dump(sys.argv[1]).rank(0, 0).values[0]
assert value.nbytes and not value.is_floating and value.layout
for ask in (lambda: value.dtype, value.tensor):
    try:
        ask()
    except aten_dump.AtenDumpError as error:
        print(error)
main(["stats", sys.argv[1]], standalone_mode=False)
print(before, "torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "dump")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    lines = done.stdout.splitlines()
    assert lines[-1] == "False False"
    assert all("has dtype '_dynamo', which torch" in line for line in lines[:2])
