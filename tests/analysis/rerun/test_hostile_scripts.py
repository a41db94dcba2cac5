"""Scripts of dumps from strangers: nothing that a dump brings is more than a literal in them, and running them does nothing else."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import AtenDumpError, open_dump
from aten_dump.analysis.rerun.repro_script import repro_script
from tests.analysis.rerun.forging import cases, forged
from tests.sampling import one_in

NAMES = {
    "stored",
    "view",
    "place",
    "cast",
    "leaves",
    "report",
    "found",
    "outputs",
    "generator",
    "dict",
    "float",
    "complex",
}
NAMES |= {"DEVICE", "torch"}
NODES = (ast.Constant, ast.List, ast.Tuple, ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Subscript, ast.Slice)
NODES += (ast.UnaryOp, ast.USub, ast.Load, ast.Store)
OF_TORCH = {"zeros", "uint8", "device", "Generator", "default_generator", "no_grad"}


def program() -> None:
    """Ops with numbers, texts, keywords, writes, random numbers, several results and a large number."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    y = torch.addmm(torch.zeros(3), x, torch.ones(6, 3), alpha=0.5)
    torch.nn.functional.gelu(y, approximate="tanh")
    y.masked_fill_(y > 0, float("-inf"))
    torch.nn.functional.dropout(x, 0.5)
    torch.cat([x, x.t().contiguous().t()]).sort()
    torch.add(x.to(torch.complex64), 2 + 1j)
    torch.full((2,), 3, dtype=torch.int8)
    x.to(torch.float64)


def changed_parts(source: str, plain: ast.Module) -> list[ast.stmt]:
    """The statements of a script that are of its dump; all others must be those of every script."""
    tree = ast.parse(source)
    names = ("RECORDED", "SHARDS")
    count = next(at for at, line in enumerate(plain.body) if getattr(line, "name", "") == "report") + 1
    for line, expected in zip(tree.body[:count], plain.body[:count], strict=True):
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) in names:
            assert isinstance(ast.literal_eval(line.value), dict)
            assert ast.unparse(line.targets[0]) == ast.unparse(expected.targets[0])  # type: ignore[attr-defined]
        else:
            assert ast.dump(line) == ast.dump(expected)
    return tree.body[count:]


def strange(line: ast.stmt) -> Iterator[str]:
    """What a statement has that no script needs."""
    if isinstance(line, ast.With):
        assert ast.unparse(line.items[0].context_expr) == "torch.no_grad()" and len(line.body) == 1
        line = line.body[0]
    if not isinstance(line, (ast.Assign, ast.Expr)):
        yield ast.dump(line)
        return
    for node in ast.walk(line):
        if isinstance(node, ast.Name):
            if node.id not in NAMES and node.id.rstrip("0123456789") not in ("memory", "tensor", "result"):
                yield node.id
        elif isinstance(node, ast.Attribute):
            if not allowed_attribute(node):
                yield ast.unparse(node)
        elif not isinstance(node, (*NODES, type(line))):
            yield ast.dump(node)


def allowed_attribute(node: ast.Attribute) -> bool:
    if isinstance(node.value, ast.Call):  # of what a call returned
        return node.attr in ("to", "manual_seed")
    parts = ast.unparse(node).split(".")
    if parts[0] == "torch":
        return known(parts[1:])
    return parts in (["generator", "set_state"], ["found", "get"], ["found", "update"])


def known(parts: list[str]) -> bool:
    """Whether a name below torch is an op of the dispatcher, a dtype, a layout, or one of the few that scripts use."""
    if parts[0] == "ops":
        return len(parts) < 5 or torch._C._dispatch_has_kernel(
            f"{parts[1]}::{parts[2]}.{parts[3]}".removesuffix(".default")
        )
    kinds = (torch.dtype, torch.layout, torch.memory_format)
    return parts[0] in OF_TORCH or isinstance(getattr(torch, parts[0]), kinds)


def scripts(dump: Path, chance: random.Random | None = None) -> Iterator[str]:
    """A script for each aten call that can have one, or for some of them."""
    try:
        calls = [call for call in open_dump(dump).step(0).rank(0).calls if call.kind == "aten"]
    except AtenDumpError:
        return
    for call in calls if chance is None else chance.sample(calls, 5):
        try:
            yield repro_script(call)
        except AtenDumpError:
            continue


_RUN = """
import io, json, os, runpy, sys
from contextlib import redirect_stdout
import torch, safetensors, math
import torch._meta_registrations
codes = [compile(text, f"script {n}", "exec") for n, text in enumerate(json.load(sys.stdin))]
torch.zeros(2).to(torch.complex128).abs().max()
seen = []
def watch(event, args):
    writes = event == "open" and (args[1] not in (None, "r", "rb") or (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if writes or event.split(".")[0] in ("os", "subprocess", "socket", "shutil", "ctypes", "code") or event == "exec" and armed:
        seen.append((event, str(args)[:80]))
armed = False
sys.addaudithook(watch)
ran = failed = 0
for code in codes:
    try:
        with redirect_stdout(io.StringIO()):
            exec(code, {"__name__": "__main__"})
        ran += 1
    except (RuntimeError, TypeError, ValueError, IndexError):
        failed += 1
print(json.dumps([ran, failed, seen[:5]]))
"""


@pytest.mark.parametrize("part", one_in(4, range(4)))
def test_nothing_of_a_dump_is_code_in_its_scripts(record: Callable[..., Any], tmp_path: Path, part: int) -> None:
    rank = record(program)
    dump = rank.directory.parent.parent
    plain = next(scripts(dump))
    checked = set[str]()
    every = list(cases())[part::4]
    for place, text, chance in every:
        for source in scripts(forged(dump, tmp_path / "forged", place, text, chance), chance):
            assert source.isascii()
            for line in changed_parts(source, ast.parse(plain)):
                assert list(strange(line)) == [], (place, text, ast.unparse(line))
            checked.add(source)
    assert len(every) > 75
    assert len(checked) > 37
    sample = random.Random(0).sample(sorted(checked), 30)
    folder = tmp_path / "empty"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _RUN], input=json.dumps(sample), capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    ran, failed, seen = json.loads(done.stdout)
    assert seen == []
    assert ran > 7 and ran + failed == 30
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("keyword", ["lambda", "None", "x=0) or print(", "__class__"])
def test_a_keyword_must_be_an_argument_of_the_op(
    record: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyword: str
) -> None:
    rank = record(program)
    every = random.Random()
    monkeypatch.setattr(every, "random", lambda: 0.0)
    dump = forged(rank.directory.parent.parent, tmp_path / "forged", "a keyword", keyword, every)
    calls = [
        call for call in open_dump(dump).step(0).rank(0).calls if call.kind == "aten" and keyword in call.inputs[1]
    ]
    assert len(calls) > 8
    for call in calls:
        with pytest.raises(AtenDumpError):
            repro_script(call)
